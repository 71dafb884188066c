"""Numbers that a dtype does not hold: what eager's kernels refuse of them (``scalar_limits``) is not captured, and the
program sees eager's error.  A symbol is guarded; a number that depends on data is checked when the graph runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.errors import UnsupportedError
from turret.graph.scalar_limits import integer_limits, number_arguments, numbers_given, refusal
from turret.plugins.joint.fakes import tensors_in

Rule = Callable[..., Any]

_EVERYWHERE = 127
"""No integer up to it is refused; signed types have its negative, too."""
_MOST = 2**63 - 1


def with_numbers_held(rule: Rule, func: Any) -> Rule:
    """``rule`` for calls of ``func`` whose numbers eager accepts; raises ``UnsupportedError`` for others."""
    if not number_arguments(func):
        return rule

    def call(tracer: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        for number in numbers_given(func, args, kwargs):
            if number is not None and not _small(number):
                _check(tracer, func, args, kwargs, number)
        return rule(tracer, func, args, kwargs)

    return call


def _small(number: Any) -> bool:
    return type(number) is int and 0 <= number <= _EVERYWHERE


def _check(tracer: Any, func: Any, args: tuple, kwargs: dict[str, Any], number: Any) -> None:
    dtypes = {v.dtype for v in tensors_in((*args, *kwargs.values()))}
    dtypes |= {v for v in kwargs.values() if isinstance(v, torch.dtype)}
    dtypes = dtypes or {torch.get_default_dtype()}
    call = f"eager refuses this call of {func}"
    if isinstance(number, torch.SymInt):
        doubtful = any(_limits(d)[1] < _MOST for d in dtypes)
        if doubtful and (limits := integer_limits(func, args, kwargs, number)) is not None:
            _within(tracer, number, *limits, call, refusal(func, args, kwargs, number, _MOST))
    elif isinstance(number, (int, float)) and not all(_holds(dtype, number) for dtype in dtypes):
        refused = refusal(func, args, kwargs, number, number)
        if refused:
            raise UnsupportedError(f"{call}: {refused}")


def _within(tracer: Any, number: torch.SymInt, low: int, high: int, call: str, refused: str) -> None:
    """Have a symbol lie between ends: by a guard, or for one of data by a check that says what eager says."""
    if free_unbacked_symbols(number):
        tracer.numbers.assume(number >= low, refused)
        tracer.numbers.assume(number <= high, refused)
    elif not low <= number <= high:
        raise UnsupportedError(f"{call}: {number} is not from {low} to {high}")


def _holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a number is one of a dtype, or within its range where that is a floating one; so are infinities and NaN.

    A float is none of an integer type, which may refuse any.
    """
    if dtype.is_complex:
        return True
    if dtype.is_floating_point and (number != number or number in (float("inf"), -float("inf"))):
        return True
    if dtype == torch.bool:
        return number in (0, 1)
    low, high = _limits(dtype)
    return low <= number <= high and (dtype.is_floating_point or type(number) is int)


@functools.cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    if dtype == torch.bool:
        return 0, 1
    ends = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return ends.min, ends.max
