"""Lazy modules: they make their parameters at their first call, which runs as Python; the next is captured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import CaptureError


def lazy() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Tanh())


@pytest.mark.parametrize("fullgraph", [True, False])
def test_the_first_call_makes_the_parameters_that_eager_makes(fullgraph):
    mine, plain, x = lazy(), lazy(), torch.randn(5, 4)
    observed = Observed(mine.__call__, fullgraph=fullgraph)
    for number in range(3):
        torch.manual_seed(number)
        found = observed(x)
        torch.manual_seed(number)
        assert_same(found, plain(x))
        assert_same(mine.state_dict(), plain.state_dict())
        assert type(mine[1]) is nn.Linear
    assert len(observed.graphs) == 1 and not observed.breaks
    assert len(observed.fallbacks) == 1 and "first call" in observed.fallbacks[0]


def test_a_lazy_module_behind_a_break():
    module, x = lazy(), torch.randn(5, 4)

    def f(x):
        print(end="")
        return module(x) + 1

    module.eval()
    observed = Observed(f)
    results = [observed(x) for _ in range(3)]
    assert_same(results[1:], results[:-1])
    assert_same(results[0], f(x))


def test_a_module_that_stays_lazy_is_given_up():
    class Forever(nn.modules.lazy.LazyModuleMixin, nn.Linear):
        cls_to_become = None

        def _infer_parameters(self, module, args, kwargs=None):
            pass

    module = Forever(4, 4)
    observed, x = Observed(module.__call__), torch.ones(2, 4)
    for _ in range(12):
        assert torch.equal(observed(x), module(x))
    assert observed.fallbacks and "this time" not in observed.fallbacks[-1]
    whole = Observed(module.__call__, fullgraph=True)
    with pytest.raises(CaptureError, match="first call"):
        for _ in range(12):
            whole(x)
