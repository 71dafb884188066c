"""Floats that a tensor's data give are compared and chosen among as Python has it, those that are no numbers, too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.errors import CaptureError

NUMBERS = (3.7, 0.5, -2.25, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e300)
OPERATORS = (operator.add, operator.sub, operator.mul, max, min)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def drawn(depth: int) -> st.SearchStrategy[Callable[[float, float], float | int]]:
    """Functions of two floats, of operators that raise for none."""
    leaves = st.one_of(
        st.just(lambda a, b: a),
        st.just(lambda a, b: b),
        st.sampled_from((1, 0, -2, 1.5, -0.0)).map(lambda c: lambda a, b: c),
    )
    if depth == 0:
        return leaves
    parts = drawn(depth - 1)
    of_two = st.builds(lambda f, x, y: lambda a, b: f(x(a, b), y(a, b)), st.sampled_from(OPERATORS), parts, parts)
    of_one = st.builds(lambda f, x: lambda a, b: f(x(a, b)), st.sampled_from((operator.neg, abs)), parts)
    return st.one_of(leaves, of_two, of_one)


def shown(value):
    """A value to the bit, and of which type it is."""
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(map(shown, value.tolist()))
    return type(value), value.hex() if isinstance(value, float) else value


@settings(max_examples=25, deadline=None)
@given(drawn(2), drawn(2), st.sampled_from(COMPARISONS), st.booleans())
def test_functions_of_them_are_pythons(first, second, comparison, negated):
    def program(x):
        a, b = x[0].item(), x[1].item()
        left, right = first(a, b), second(a, b)
        found = comparison(left, right)
        return left, right, not found if negated else found, x.new_ones(2) * left

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False})
    for a in NUMBERS:
        for b in (NUMBERS[0], math.nan, -0.0):
            x = torch.tensor([a, b], dtype=torch.float64)
            try:
                found = compiled(x)
            except CaptureError:  # it matters of which type a number is that data choose
                return
            assert shown(found) == shown(program(x)), (a, b)


WHOLE = {
    "larger": lambda s, x: (max(s, 1.0), max(1.0, s)),
    "smaller": lambda s, x: (min(s, 1.0), min(1.0, s)),
    "zeros": lambda s, x: (max(s, -0.0), max(-0.0, s), min(s, 0.0), min(0.0, s)),
    "of two": lambda s, x: (max(s, x[1].item() * 2), min(max(s, 0), x[1].item())),
    "an int or a float": lambda s, x: (max(s, 1), max(1, s), min(s, 3), max(1, min(s, 3)), 2.0 * max(1, s)),
    "beside a tensor": lambda s, x: (x / max(1, s), x * min(max(s, 0), 1), (max(s, 1) + 2) - x, max(s, 1) > x),
    "of a size": lambda s, x: (max(s, x.shape[0] / 2), min(x.shape[0] * 0.5, s)),
    "itself": lambda s, x: (s == s, s != s, s < s, s >= s, abs(s) >= 0),
    "negated": lambda s, x: (not (s > 1), not (s <= 1), not (s == 2), not (s != 2)),
    "with a size": lambda s, x: (s > x.shape[0], x.shape[0] >= s),
}


@pytest.mark.parametrize("name", WHOLE)
def test_they_are_compared_and_chosen_among_in_one_graph(name):
    def program(x):
        return WHOLE[name](x[0].item(), x)

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for a in NUMBERS:
        x = torch.tensor([a, 1.25], dtype=torch.float64)
        assert shown(compiled(x)) == shown(program(x)), a


def test_beside_a_tensor_of_integers_it_matters_which_of_a_float_and_an_int_was_chosen():
    def program(x):
        return torch.ones(2, dtype=torch.int32) * max(1, x.item())

    compiled = turret.compile(program)
    for number in (0.5, 2.5):
        assert shown(compiled(torch.tensor(number))) == shown(program(torch.tensor(number)))
