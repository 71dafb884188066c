"""Backwards of ours inside those that ``torch._dynamo.compiled_autograd`` records."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo import compiled_autograd

import turret


@pytest.mark.parametrize("backend", ["eager", "turret"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.thorough
def test_a_compiled_backward_is_called_by_a_recorded_one(backend, warm, dynamic):
    torch._dynamo.reset()
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    fast = turret.compile(net, options={"cache": False, "on_error": "raise"})
    if warm:
        fast(torch.randn(2, 3, requires_grad=True)).sum().backward()
    for rows in (2, 3):
        x = torch.randn(rows, 3, requires_grad=True)
        (wanted,) = torch.autograd.grad((net(x) * x).sum(), x)
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend), dynamic=dynamic):
            (fast(x) * x).sum().backward()
        torch.testing.assert_close(x.grad, wanted)
