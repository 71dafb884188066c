"""Which floats an op takes, asked of eager's kernels."""

from __future__ import annotations

import math

import pytest
import torch

from turret.graph.scalar_limits import float_limits, integer_limits, number_arguments, numbers_given

aten = torch.ops.aten
LARGEST = {d: torch.finfo(d).max for d in (torch.float16, torch.bfloat16, torch.float32)}


@pytest.mark.parametrize("dtype", LARGEST)
def test_a_floating_dtype_takes_what_lies_within_its_ends(dtype):
    x, number = torch.ones(2, dtype=dtype), object()
    limits = float_limits(aten.masked_fill.Scalar, (x, x > 0, number), {}, number)
    assert limits is not None
    assert (limits.low, limits.high, limits.others) == (-LARGEST[dtype], LARGEST[dtype], True)
    assert limits.hold(math.inf) and limits.hold(math.nan) and not limits.hold(1e308)
    assert eval(limits.condition().format(LARGEST[dtype])) and not eval(limits.condition().format(1e308))


def test_an_integer_dtype_takes_neither_infinity_nor_nan():
    x, number = torch.ones(2, dtype=torch.int8), object()
    limits = float_limits(aten.fill_.Scalar, (x, number), {}, number)
    assert limits is not None and (limits.low, limits.high, limits.others) == (-128.0, 127.0, False)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.int8, -128, 127),
        (torch.uint8, -255, 255),
        (torch.int16, -32768, 32767),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.float16, -65504, 65504),
    ],
)
def test_integers_are_taken_as_far_as_a_dtype_holds_them_whatever_else_is_given(dtype, low, high):
    x, number = torch.ones(2, dtype=dtype), object()
    assert integer_limits(aten.masked_fill.Scalar, (x, x > 0, number), {}, number) == (low, high)


def test_what_takes_all_numbers_has_no_limits():
    x, number = torch.ones(2, dtype=torch.float64), object()
    assert float_limits(aten.masked_fill.Scalar, (x, x > 0, number), {}, number) is None
    assert integer_limits(aten.masked_fill.Scalar, (x, x > 0, number), {}, number) is None


@pytest.mark.parametrize("op", [aten.linspace.default, aten.logspace.default])
def test_the_number_of_points_is_none_that_is_tried(op):
    number = object()
    limits = float_limits(op, (0.0, number, 10**12), {"dtype": torch.float32}, number)
    assert limits is not None and limits.high == LARGEST[torch.float32]


def test_numbers_that_say_how_much_memory_is_taken_are_not_tried():
    assert not number_arguments(aten.arange.default)
    assert list(numbers_given(aten._foreach_add.ScalarList, ([torch.ones(1)], [2, 3]), {})) == [2, 3]
