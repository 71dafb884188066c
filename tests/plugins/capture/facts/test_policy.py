"""What is seen to change from call to call is made symbolic, or is not assumed to be the same object."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same


def test_sizes_change_among_tensors_of_as_many_dimensions():
    def program(x):
        return x.sum(-1) * 2

    observed = Observed(program)
    for shape in ((2, 3), (2, 3, 4), (4, 3), (5, 3, 4), (6, 3), (7, 3, 4), (8, 3)):
        x = torch.randn(shape)
        assert_same(observed(x), program(x))
    assert len(observed.graphs) == 4  # for each number of dimensions, the first sizes and all others


def nested() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 2), nested])
def test_what_is_in_a_module_that_is_another_one_on_each_call_is_another_one_too(make):
    def program(module, x):
        return module(x)

    observed = Observed(program)
    for _ in range(5):
        module, x = make(), torch.randn(3, 4)
        assert_same(observed(module.eval(), x), program(module, x))
    assert len(observed.graphs) == 1
