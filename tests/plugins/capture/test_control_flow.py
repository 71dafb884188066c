"""``torch.cond`` and ``while_loop``: branches become graphs of their own, captured and compiled; breaks otherwise."""

from __future__ import annotations

import copy

import pytest
import torch
from capture_lab import Observed, check
from torch._higher_order_ops.while_loop import while_loop

import turret

X = torch.arange(1.0, 5.0)
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


def full(program, *inputs):
    """One graph for all inputs, equal to eager as captured and compiled."""
    observed = Observed(program, fullgraph=True)
    fast = turret.compile(program, fullgraph=True, options=OPTIONS)
    for x in inputs:
        expected = program(copy.deepcopy(x))
        torch.testing.assert_close(observed(copy.deepcopy(x)), expected)
        torch.testing.assert_close(fast(copy.deepcopy(x)), expected)
    assert len(observed.graphs) == 1


def test_a_condition_on_data():
    full(lambda x: torch.cond(x.sum() > 3, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1, X, -X)


def test_branches_use_what_is_around_them():
    def program(x):
        y, z = x * 2, x - 1
        return torch.cond(x.sum() > 3, lambda x: x + y, lambda x: x - y * z, (x,))

    full(program, X, -X)


def test_branches_with_structured_results():
    def program(x):
        found = torch.cond(x.sum() > 3, lambda: {"a": x * 3, "b": (x + 1,)}, lambda: {"a": x * 2, "b": (x - 1,)})
        return found["a"] - 1, found["b"][0]

    full(program, X, -X)


def test_nested_conditions():
    def program(x):
        def inner(x):
            return torch.cond(x.max() > 10, lambda v: v * 2, lambda v: v * 3, (x,))

        return torch.cond(x.sum() > 3, inner, lambda v: v - 1, (x,))

    full(program, X, -X, X * 10)


def test_a_known_condition_takes_its_branch():
    observed = check(lambda x: torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x.cos(), (x,)), X, breaks=0)
    assert "cond" not in str(observed.graphs[0])


@pytest.mark.parametrize("steps", [0, 3])
def test_a_loop_on_data(steps):
    def program(x):
        start = torch.tensor(0)
        return while_loop(lambda i, v: i < steps, lambda i, v: (i + 1, v * 2 + x), (start, x))

    full(program, X)


def test_branches_with_side_effects_run_as_python():
    def program(x, log):
        def branch(x):
            log.append(1)
            return x + 1

        return torch.cond(x.sum() > 3, branch, lambda x: x, (x,))

    observed = Observed(program)
    with pytest.raises(Exception):
        observed(X, [])
    assert "side effects" in observed.breaks[0]


def test_gradients_through_a_condition_run_as_python():
    def program(x):
        return torch.cond(x.sum() > 3, lambda x: x.sin(), lambda x: x.cos(), (x,)) * 2

    observed = Observed(program)
    mine, plain = X.clone().requires_grad_(), X.clone().requires_grad_()
    observed(mine).sum().backward()
    (plain.sin() * 2).sum().backward()
    torch.testing.assert_close(mine.grad, plain.grad)
    assert "gradients through torch.cond" in observed.breaks[0]
