"""Indices are settled as Python settles them, on ints and, in a plan's text, on symbols."""

from __future__ import annotations

import operator

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from turret.graph.ops.host_scalars import (
    bound_of_slice,
    end_of_slice,
    evaluated,
    expression,
    position_of_element,
)
from turret.plan import size_text

EXTENTS = st.integers(0, 6)
INDICES = st.integers(-9, 9)


@given(EXTENTS, INDICES, INDICES)
def test_bounds_of_a_slice_are_pythons(extent: int, start: int, end: int) -> None:
    first, last = bound_of_slice(start, extent), bound_of_slice(end, extent)
    assert 0 <= first <= extent and 0 <= last <= extent
    assert list(range(extent))[start:end] == list(range(first, end_of_slice(last, first)))


@given(EXTENTS, INDICES)
def test_a_position_is_the_elements_or_outside(extent: int, index: int) -> None:
    items = list(range(extent))
    position = position_of_element(index, extent)
    if -extent <= index < extent:
        assert items[position] == items[index] and position >= 0
    else:
        assert not 0 <= position < extent


@given(EXTENTS, INDICES)
@pytest.mark.parametrize("function", [bound_of_slice, position_of_element, end_of_slice])
def test_the_text_of_a_plan_computes_the_same(function, extent: int, index: int) -> None:
    symbols = sympy.Symbol("u0", integer=True), sympy.Symbol("s0", integer=True, positive=True)
    text = str(size_text(expression(function, symbols)))
    assert eval(text, {"u0": index, "s0": extent}) == function(index, extent)
    assert evaluated(text, ("u0", "s0"), index, extent) == function(index, extent)


def test_other_functions_have_no_expression():
    assert expression(operator.add, (1, 2)) is None and expression(torch.ops.aten.sin.default, ()) is None
