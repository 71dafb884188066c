"""Floats that change from call to call: inputs of the graph, and guards where the program decides on them."""

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

from tests.plugins.capture.capture_lab import Observed, assert_same

X, Y = torch.tensor([0.5, 1.5, 2.5]), torch.tensor([2.0, -1.0, 0.25])
_NUMBERS = (0.1, 0.3, 0.7, 0.05, 1e-3)


def check(program: Callable, numbers: Any = _NUMBERS, captures: int = 2, breaks: int = 0) -> Observed:
    """Calls with each number, captured and not."""
    observed = Observed(program)
    for number in numbers:
        mine, theirs = X.clone(), X.clone()
        assert_same(observed(mine, number), program(theirs, number))
        assert_same(mine, theirs, "argument")
    assert len(observed.breaks) == breaks and not observed.fallbacks, observed.breaks
    assert len(observed.graphs) <= captures + breaks, observed.recompiles
    return observed


@pytest.mark.parametrize(
    "program",
    [
        lambda x, r: x.add_(Y, alpha=-r),
        lambda x, r: x.addcdiv_(Y, Y + 3, value=-r),
        lambda x, r: x.lerp(Y, 1 - r),
        lambda x, r: torch._foreach_add([x], [Y], alpha=r),
        lambda x, r: torch._foreach_addcdiv([x], [Y], [Y + 3], [r / (1 - 0.9**3)]),
        lambda x, r: (x.long() * r, x.sum() * r, r**x, torch.pow(r, Y), x.clamp(max=r)),
        lambda x, r: torch.vmap(lambda v: v * r)(x),
        lambda x, r: (torch.full((2,), r), x.new_full((2,), r), torch.where(x > r, x, r)),
        lambda x, r: (x, r, [r * 3], {"rate": -r}, abs(r), r is None, float(r), bool(r)),
        lambda x, r: x * max(r, 0.25) + min(r, 0.2),
    ],
)
def test_a_float_that_changes_is_an_operand_like_a_number_of_python(program):
    check(program)


def test_what_a_graph_cannot_hold_breaks_it_and_goes_on():
    check(lambda x, r: (x * r, f"{r:.3f}", x + 1), breaks=1)


def test_a_decision_on_a_float_is_a_guard():
    observed = check(lambda x, r: x + 1 if r * 2 > 0.5 else x - r, captures=4)
    assert len(observed.recompiles) == 2  # the float changed; the decision changed


@settings(max_examples=30, deadline=None)
@given(
    symbol=st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]),
    form=st.sampled_from(
        [
            lambda r: r, lambda r: 1 - r * 0.1, lambda r: r / 3, lambda r: -r + 0.3, lambda r: (r + 1) ** 2 - 2,
            lambda r: r % 0.2, lambda r: r // 0.2,
        ]
    ),
    bound=st.sampled_from([0.0, 0.1, 0.3, 1.0, 0.1 + 0.2]),
    numbers=st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.1 + 0.2, 1.0, -0.5, 0.2, 0.6]), min_size=3, max_size=7),
)  # fmt: skip
def test_decisions_are_those_of_python(symbol, form, bound, numbers):
    def program(x, r):
        return (x + 1) * r if symbol(form(r), bound) else x - 1

    observed = Observed(program)
    for number in numbers:
        assert_same(observed(X, number), program(X, number))


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_infinity_and_nan_are_taken_for_what_they_are(number):
    check(lambda x, r: x * r, (0.1, 0.2, number, 0.3, number), captures=4)


def test_a_float_of_a_module_that_anneals_it():
    class Annealed(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = 1.0

        def forward(self, x):
            return torch.softmax(x / self.temperature, 0)

    module = Annealed()
    observed = Observed(module.__call__)
    for _ in range(6):
        assert_same(observed(X), module(X))
        module.temperature *= 0.9
    assert len(observed.graphs) == 2 and not observed.breaks


RATE = 0.5


def test_a_global_float_that_changes():
    global RATE

    def program(x):
        return x * RATE

    observed = Observed(program)
    for number in (0.5, 0.25, 0.125, 0.3):
        RATE = number
        assert_same(observed(X), program(X))
    assert len(observed.graphs) == 2


def test_gradients_flow_past_a_float_that_changes():
    def program(x, r):
        return (x * r).sum()

    observed = Observed(program)
    for number in _NUMBERS:
        x = X.clone().requires_grad_()
        observed(x, number).backward()
        torch.testing.assert_close(x.grad, torch.full_like(X, number))
    assert len(observed.graphs) == 2


NEEDED = {
    "a function of math": lambda x, f: x * math.sqrt(f), "a method": lambda x, f: x * f.as_integer_ratio()[0],
    "a text": lambda x, f: x * len(f"{f}"), "a key": lambda x, f: x * {f: 2}[f],
    "an operation": lambda x, f: torch.nn.functional.layer_norm(x, (4,), eps=f),
    "a decision": lambda x, f: x * f if math.sin(f) > 0 else x,
}  # fmt: skip


@pytest.mark.parametrize("program", NEEDED.values(), ids=NEEDED)
def test_what_needs_a_number_takes_it_for_a_constant(program):
    observed = Observed(program, fullgraph=True)
    x = torch.arange(4.0)
    for number in (0.5, 1.5, 2.25, 0.5):
        torch.testing.assert_close(observed(x, number), program(x, number))
    assert len(observed.graphs) == 3
