"""Numbers that a dtype does not hold, which some of eager's kernels refuse and others wrap or round.

Shape functions look at none of them, and a kernel would compute with whatever the number becomes:
``x.masked_fill(mask, -1e9)`` of a half tensor, ``x.clamp(max=300)`` of an ``int8`` one.  Which calls are refused is
asked of eager's own kernel, on tensors of a few elements, where a call has such a number at all; what it refuses is not
captured, and the program sees eager's error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.errors import UnsupportedError
from turret.hooks.devices import HOST
from turret.torch_compat.dispatch import no_dispatch

aten = torch.ops.aten
Rule = Callable[..., Any]

_REFUSALS = ("without overflow", "argument alpha must not be")
"""What eager says where it refuses a number."""
_UNTRIED = (aten.arange, aten.range, aten.linspace, aten.logspace)
"""Ops whose numbers say how much memory they take."""
_EVERYWHERE = 127
"""No integer up to it is refused; signed types have its negative, too."""


def with_numbers_held(rule: Rule, func: Any) -> Rule:
    """``rule`` for calls of ``func`` whose numbers eager accepts; raises ``UnsupportedError`` for others."""
    if getattr(func, "namespace", "") != "aten" or func.overloadpacket in _UNTRIED:
        return rule
    if torch.Tag.nondeterministic_seeded in func.tags:
        return rule
    numbers = {n: a.name for n, a in enumerate(func._schema.arguments) if "number" in str(a.type)}
    if not numbers:
        return rule

    def call(tracer: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        for place, name in numbers.items():
            number = args[place] if place < len(args) else kwargs.get(name)
            if number is not None and not _small(number):
                _check(func, args, kwargs, number)
        return rule(tracer, func, args, kwargs)

    return call


def _small(number: Any) -> bool:
    return type(number) in (int, float) and 0 <= number <= _EVERYWHERE and number == int(number)


def _check(func: Any, args: tuple, kwargs: dict[str, Any], number: Any) -> None:
    dtypes = {v.dtype for v in (*args, *kwargs.values()) if isinstance(v, Tensor)}
    dtypes |= {v for v in kwargs.values() if isinstance(v, torch.dtype)}
    if isinstance(number, torch.SymInt):
        known = not free_unbacked_symbols(number)
        doubtful = [d for d in dtypes if _limits(d)[1] < 2**63 - 1]
        if known and doubtful and _refusal(func, args, kwargs, number, 2**63 - 1):
            for low, high in map(_limits, doubtful):
                if not low <= number <= high:  # a guard
                    raise UnsupportedError(f"eager refuses this call of {func}: {number} in one of {dtypes}")
    elif isinstance(number, (int, float)) and not all(_holds(dtype, number) for dtype in dtypes):
        refusal = _refusal(func, args, kwargs, number, number)
        if refusal:
            raise UnsupportedError(f"eager refuses this call of {func}: {refusal}")


def _holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a number is within the range of a dtype, infinities and NaN of floating types included."""
    if dtype.is_complex:
        return True
    if dtype.is_floating_point and (number != number or number in (float("inf"), -float("inf"))):
        return True
    if dtype == torch.bool:
        return number in (0, 1)
    low, high = _limits(dtype)
    return low <= number <= high and (dtype.is_floating_point or number == int(number))


@functools.cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    if dtype == torch.bool:
        return 0, 1
    ends = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return ends.min, ends.max


def _refusal(func: Any, args: tuple, kwargs: dict[str, Any], number: Any, tried: Any) -> str:
    """What eager says to such a call with ``tried`` in place of ``number``, or empty where it takes it."""

    def small(value: Any) -> Any:
        if value is number:
            return tried
        if isinstance(value, Tensor):
            return torch.zeros([2] * value.dim(), dtype=value.dtype)  # of one element, ``fill_`` refuses less
        if isinstance(value, torch.device):
            return HOST
        if isinstance(value, (tuple, list)):
            return [min(v, 2) if type(v) is int else small(v) for v in value]
        return 2 if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value

    with no_dispatch(), torch.no_grad():
        try:
            func(*map(small, args), **{name: small(value) for name, value in kwargs.items()})
        except Exception as error:
            return str(error) if any(words in str(error) for words in _REFUSALS) else ""
    return ""
