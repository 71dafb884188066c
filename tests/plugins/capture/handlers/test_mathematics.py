"""Functions of ``math`` of numbers that depend on data are Python's own, in whole graphs, errors among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import turret

NUMBERS = (2.5, 0.0, -0.0, -1.5, 1e300, 0.5, 709.5, math.inf, -math.inf, math.nan, 171.0, -1.0, 1.0)
ONE = (
    "sqrt log log2 log10 log1p exp exp2 expm1 sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh gamma lgamma "
    "erf erfc fabs degrees radians cbrt isnan isinf isfinite floor ceil trunc"
).split()
TWO: dict[str, Callable[[float], Any]] = {
    "power": lambda f: math.pow(f, 0.5),
    "whole power": lambda f: math.pow(f, -2),
    "exponent": lambda f: math.pow(2.0, -f),
    "hypot": lambda f: math.hypot(f, 3.0),
    "remainder": lambda f: math.fmod(7.5, f),
    "sign": lambda f: math.copysign(2.0, f),
    "angle": lambda f: math.atan2(f, -1.0),
    "logarithm": lambda f: math.ceil(math.log2(abs(f) + 1e-12)),
}


def _outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return function(x)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        return type(error), str(error)


def _same(got: Any, expected: Any) -> bool:
    if isinstance(expected, tuple) and not isinstance(expected[0], type):
        return all(_same(a, b) for a, b in zip(got, expected, strict=True))
    if isinstance(expected, Tensor):
        return torch.equal(got.nan_to_num(1e9), expected.nan_to_num(1e9))
    return type(got) is type(expected) and (repr(got) == repr(expected) or got == expected)


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("name", [*(n for n in ONE if hasattr(math, n)), *TWO])
def test_a_float_of_data_gives_what_python_gives_or_raises_what_it_raises(name: str, unread: bool) -> None:
    function = TWO.get(name) or getattr(math, name)

    def program(x: Tensor) -> Any:
        found = function(x.sum().item())
        return x + 1 if unread else (x * 2, found)

    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    for number in NUMBERS:
        x = torch.tensor([number], dtype=torch.float64)
        assert _same(_outcome(compiled, x), _outcome(program, x)), number


def test_ints_and_bools_of_data_are_numbers_to_math_too() -> None:
    def program(x: Tensor) -> tuple[Tensor, float, float]:
        return x * math.sqrt(int(x.sum())), math.log(int(x.numel() + x.max())), math.exp(bool(x.any()))

    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    for x in (torch.tensor([4, 5]), torch.tensor([0, 0]), torch.tensor([1, 99])):
        assert _same(compiled(x), program(x))
