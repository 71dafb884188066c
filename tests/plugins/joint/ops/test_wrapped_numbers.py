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


@pytest.mark.thorough(1)
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


ON_NUMBERS = {
    "add": lambda n: torch.add(2, n),
    "add with alpha": lambda n: torch.add(2, 3, alpha=n),
    "mul": lambda n: torch.mul(2.5, n),
    "true_divide": lambda n: torch.true_divide(2.5, n),
    "div, floored": lambda n: torch.div(7, n, rounding_mode="floor"),
    "floor_divide": lambda n: torch.floor_divide(9, n),
    "subtract": lambda n: torch.subtract(3, n),
    "an op of ATen": lambda n: torch.ops.aten.add(3.3, n),
    "an overload": lambda n: torch.ops.aten.mul.Tensor(True, n),
    "a computed number": lambda n: torch.ops.aten.add(1, n * 0.5),
}


@pytest.mark.parametrize("numbers", ((4, 5, 6, -3), (4.5, 5.25, 6.0, -0.5)), ids=("int", "float"))
@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("name", ON_NUMBERS)
def test_ops_on_a_number_and_one_that_changes_give_eagers_tensor(name, dynamic, numbers):
    program = ON_NUMBERS[name]
    fast = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    for number in numbers:
        try:
            expected = program(number)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                fast(number)
            continue
        torch.testing.assert_close(fast(number), expected, rtol=0, atol=0)
