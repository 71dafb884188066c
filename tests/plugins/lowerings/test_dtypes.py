"""Pointwise ops give eager's values and dtypes for every pair of dtypes and every kind of Python number."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.plugins.lowerings.lowering_lab import check

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
NUMBERS = (
    *(True, False, 0, 1, 2, 3, -1, -2, 5, 200),
    *(0.0, 0.1, 0.5, -0.5, 2.0, 3.0, -1.0, -2.0, 2.5, math.inf, -math.inf, math.nan),
)


def values(dtype: torch.dtype) -> torch.Tensor:
    """Numbers on which ops differ: zeros of both signs, ends of the range, NaN and infinities."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False, False])
    if dtype.is_floating_point:
        numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.25, 7.0, -7.0, math.inf, -math.inf, math.nan, 300.7, -129.5]
        return torch.tensor(numbers, dtype=dtype)
    info = torch.iinfo(dtype)
    numbers = [0, 1, 2, 3, 7, info.max, info.max - 1] + ([-1, -2, -7, info.min] if info.min else [])
    return torch.tensor(numbers, dtype=dtype)


def grid(first: torch.dtype, second: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value of the first against every value of the second."""
    return values(first)[:, None].clone(), values(second)[None].clone()


def eager_takes(function: Callable, *args: Any) -> bool:
    try:
        function(*args)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


_UNARY_NAMES = """
abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc exp exp2 expm1 floor frac isfinite isinf isnan
isneginf isposinf lgamma log log10 log1p log2 logical_not logit neg positive reciprocal relu round rsqrt sigmoid sgn
sign signbit sin sinc sinh sqrt square tan tanh trunc deg2rad nan_to_num
"""

_BINARY_NAMES = """
add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot copysign bitwise_and bitwise_or
bitwise_xor bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor eq ne lt le gt ge nextafter xlogy
float_power heaviside
"""

UNARY: dict[str, Callable] = {name: getattr(torch, name) for name in _UNARY_NAMES.split()}

BINARY: dict[str, Callable] = {name: getattr(torch, name) for name in _BINARY_NAMES.split()}
BINARY["div_trunc"] = lambda a, b: torch.div(a, b, rounding_mode="trunc")
BINARY["div_floor"] = lambda a, b: torch.div(a, b, rounding_mode="floor")
BINARY["where"] = lambda a, b: torch.where(torch.tensor([[True], [False]] * 50)[: a.shape[0]], a, b)
BINARY["clamp_min"] = lambda a, b: torch.clamp(a, min=b)
BINARY["clamp_max"] = lambda a, b: torch.clamp(a, max=b)

INTEGER_DIVISIONS = ("floor_divide", "remainder", "fmod", "div_trunc", "div_floor")


def check_all(cases: list[tuple[Callable, tuple[torch.Tensor, ...]]]) -> None:
    """Every function on its tensors, as one program, so that it is traced once."""
    cases = [(function, tensors) for function, tensors in cases if eager_takes(function, *tensors)]

    def program(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(args)
        return tuple(function(*(next(rest) for _ in tensors)) for function, tensors in cases)

    check(program, *(t for _, tensors in cases for t in tensors))


@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_match_eager_for_every_dtype(name: str) -> None:
    check_all([(UNARY[name], (values(dtype),)) for dtype in DTYPES])


def _divisible(x: torch.Tensor) -> torch.Tensor:
    """``x`` without the least integer, whose division by -1 traps in eager."""
    if x.dtype.is_floating_point or x.dtype in (torch.bool, torch.uint8):
        return x
    return x[x != torch.iinfo(x.dtype).min][:, None]


def _divides_by_zero(name: str, divisor: Any, *dtypes: torch.dtype) -> bool:
    integers = not any(d.is_floating_point for d in dtypes)
    return name in INTEGER_DIVISIONS and integers and bool((torch.as_tensor(divisor) == 0).any())


def _negative_power(name: str, exponent: Any, *dtypes: torch.dtype) -> bool:
    integers = not any(d.is_floating_point for d in dtypes)
    return name == "pow" and integers and bool((torch.as_tensor(exponent) < 0).any())


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.thorough
def test_binary_ops_match_eager_for_every_pair_of_dtypes(name: str) -> None:
    function, cases = BINARY[name], []
    for first, second in itertools.product(DTYPES, DTYPES):
        a, b = grid(first, second)
        if name in INTEGER_DIVISIONS and not (first.is_floating_point or second.is_floating_point):
            a, b = _divisible(a), b[b != 0][None]
        if name == "xlogy" and torch.float16 in (first, second):
            # Its decomposition takes integers to float32 without rounding them to halves first.
            a, b = a[a.double().abs().flatten() < 2048], b[:, b.double().abs().flatten() < 2048]
        cases.append((function, (a, b)))
    check_all(cases)


@pytest.mark.parametrize("function", [operator.lshift, operator.rshift], ids=["left", "right"])
def test_shifts_by_operators_match_eager_whatever_they_shift_by(function: Callable) -> None:
    integers = [dtype for dtype in DTYPES if not dtype.is_floating_point and dtype != torch.bool]
    cases = [(function, grid(first, second)) for first, second in itertools.product(integers, integers)]
    cases += [
        (lambda a, by=by: function(a, by), (values(dtype),)) for dtype in integers for by in (0, 1, 7, 31, 64, -1)
    ]
    check_all(cases)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "eq", "lt", "maximum", "add", "mul"])
def test_tensors_without_dimensions_are_rounded_to_the_dtype_of_those_that_have_some(name: str) -> None:
    function, cases = BINARY[name], []
    for small in (1e-9, -1e-9, 70000.0, 1e-40, 0.3):
        number = torch.tensor(small, dtype=torch.float64)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            cases += [(function, (number, values(dtype))), (function, (values(dtype), number))]
            cases.append((lambda a, x: function(torch.sin(a).float(), x), (number, values(dtype))))
    check_all(cases)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.thorough
def test_binary_ops_match_eager_for_python_numbers(name: str) -> None:
    function, cases = BINARY[name], []
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        x = values(dtype)[:, None].clone()
        x = _divisible(x) if name in INTEGER_DIVISIONS else x
        kinds = (dtype, torch.as_tensor(number).dtype)
        if name == "pow" and isinstance(number, bool):
            continue  # tracing takes True for 1, which eager tells apart where the base is bool
        if _divides_by_zero(name, number, *kinds) or _negative_power(name, number, *kinds):
            continue
        cases.append((lambda a, number=number: function(a, number), (x,)))
        turned = name in ("sub", "div", "pow", "remainder")
        if turned and not _divides_by_zero(name, x, *kinds) and not _negative_power(name, x, *kinds):
            cases.append((lambda a, number=number: function(number, a), (x,)))
    check_all(cases)


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_zero_dimensional_tensors_do_not_promote_within_their_category(first: torch.dtype) -> None:
    a, cases = values(first), []
    for b in (values(second)[2].clone() for second in DTYPES):
        for function in (operator.add, operator.mul, torch.maximum, operator.lt, torch.true_divide):
            cases += [(function, (a, b)), (function, (b, a))]
    check_all(cases)


def test_conversions_match_eager_within_the_range_of_the_target() -> None:
    cases = []
    for source, target in itertools.product(DTYPES, DTYPES):
        x = values(source)
        if source.is_floating_point and not target.is_floating_point and target != torch.bool:
            info = torch.iinfo(target)
            x = x[(x >= info.min) & (x <= info.max)]
        cases.append((lambda a, target=target: a.to(target), (x,)))
    check_all(cases)


def test_half_types_round_once_at_the_end_of_an_op() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x, y = torch.randn(500).to(dtype), torch.randn(500).to(dtype)
        check(lambda a, b: (torch.add(a, b, alpha=2), a * b, a / b, torch.exp(a)), x, y, rtol=0, atol=0)


def test_alpha_scales_in_the_dtype_of_the_result() -> None:
    x = torch.tensor([100, -100, 7], dtype=torch.int8)
    check(lambda a: (torch.add(a, a, alpha=3), torch.sub(a, a, alpha=5)), x)
    check(lambda a: (torch.add(a, a.float(), alpha=0.5),), x)
    check(lambda a: (torch.add(a, a, alpha=True),), torch.tensor([True, False]))


def test_rounding_to_decimals_matches_eager() -> None:
    x = torch.tensor([1.2345, -2.5, 0.05, 12345.678, math.nan, math.inf])
    for decimals in (-2, -1, 0, 1, 3):
        check(lambda a, d=decimals: (torch.round(a, decimals=d),), x)


def test_clamp_takes_none_numbers_and_tensors_and_hands_nan_on() -> None:
    x = torch.tensor([-3.0, 0.0, 3.0, math.nan, math.inf])
    low, high = torch.tensor([0.0, 1.0, math.nan, 0.0, 1.0]), torch.tensor([-1.0, 2.0, 5.0, 1.0, 2.0])
    check(lambda a, lo, hi: (a.clamp(lo, hi), a.clamp(min=lo), a.clamp(max=hi)), x, low, high)
    check(lambda a: (a.clamp(-1, 1), a.clamp(2, 1)), x)
    integers = torch.tensor([-3, 0, 3, 100])
    check(lambda a: (a.clamp(-1, 2), a.clamp(-0.5, 1.5), a.clamp(max=math.inf)), integers)
