"""Branches on drawn numbers that come out the same for every draw are followed, and the numbers drawn as eager does."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed

COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
BOUNDS = [-1.0, -0.0, 0.0, 0, 1e-9, 0.5, 1.0, 1, 1.5, 2, math.inf, -math.inf, math.nan]


def by(compare: Callable, bound: Any, mirrored: bool, dtype: torch.dtype) -> Callable:
    def program(x):
        drawn = torch.rand([], dtype=dtype)
        if compare(bound, drawn) if mirrored else compare(drawn, bound):
            return x + 1
        return x * 2 + torch.rand(3)

    return program


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(COMPARE)),
    st.sampled_from(BOUNDS),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_results_and_draws_are_those_of_eager(symbol: str, bound: Any, mirrored: bool, dtype: torch.dtype) -> None:
    program = by(COMPARE[symbol], bound, mirrored, dtype)
    compiled = Observed(program)
    x = torch.ones(3)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = program(x), torch.rand(2)
        torch.manual_seed(seed)
        found = compiled(x), torch.rand(2)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    shown = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}[symbol] if mirrored else symbol
    decided = bound < 0 or bound > 1 or (bound, shown) in [(0, "<"), (0, ">="), (1, "<="), (1, ">")]
    assert bool(compiled.breaks) is not decided


@pytest.mark.parametrize(
    "change",
    [lambda drawn: drawn.sub_(1), lambda drawn: drawn.view(1).neg_(), lambda drawn: drawn.detach().sub_(2)],
)
def test_numbers_that_were_changed_are_not_decided_on(change: Callable) -> None:
    def program(x):
        drawn = torch.rand([])
        change(drawn)
        return x + 1 if drawn < 0.0 else x * 2

    compiled = Observed(program)
    x = torch.ones(3)
    assert torch.equal(compiled(x), program(x)) and compiled.breaks


def test_what_was_changed_behind_a_comparison_is_not_decided_on() -> None:
    def program(x):
        smaller = torch.rand([]) < 0.0
        smaller.logical_not_()
        return x + 1 if smaller else x * 2

    compiled = Observed(program)
    x = torch.ones(3)
    assert torch.equal(compiled(x), program(x)) and compiled.breaks


def test_layers_that_are_never_left_out_train_in_one_graph() -> None:
    class Net(nn.Module):
        def __init__(self, left_out: float) -> None:
            super().__init__()
            self.layers, self.left_out = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)]), left_out
            self.last = nn.Linear(3, 3)

        def forward(self, x):
            for layer in self.layers:
                if self.training and torch.rand([]) < self.left_out:
                    continue
                x = layer(x).relu()
            return self.last(x)

    for left_out in (0.0, 0.5):
        net = Net(left_out)
        compiled = turret.compile(net, options={"on_error": "raise", "fallback_random": True})
        for seed in range(4):
            x = torch.randn(2, 3)
            found, expected = [], []
            for call, results in ((compiled, found), (net, expected)):
                torch.manual_seed(seed)
                net.zero_grad()
                y = call(x)
                y.sum().backward()
                results += [y.detach(), torch.rand(2), *(p.grad for p in net.parameters() if p.grad is not None)]
            torch.testing.assert_close(found, expected)
    assert not turret.explain(Net(0.0))(torch.randn(2, 3)).graph_breaks
