"""Ops that take tensors and get numbers alone give what they give in eager, of its dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

aten = torch.ops.aten
OPS = (aten.add, aten.sub, aten.mul, aten.div, aten.true_divide, aten.floor_divide)
numbers = st.sampled_from([True, 2, -3, 2.5, -0.5, 1e300, 1 + 2j])


@pytest.mark.parametrize("op", OPS, ids=str)
@settings(max_examples=12, deadline=None)
@given(numbers, numbers, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_of_two_numbers_the_result_has_eagers_dtype(op: Callable, one: complex, other: complex, dtype) -> None:
    def program(x):
        made = op(one, other)
        return made, made * x

    x = torch.ones(2, dtype=dtype)
    try:
        expected = program(x)
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error)):
            turret.compile(program)(x)
        return
    for mine, theirs in zip(turret.compile(program, fullgraph=True)(x), expected, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, equal_nan=True)
