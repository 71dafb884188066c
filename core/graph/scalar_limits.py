"""Numbers that a dtype does not hold, which some of eager's kernels refuse and others wrap or round.

Shape functions look at none of them, and a kernel would compute with whatever the number becomes:
``x.masked_fill(mask, -1e9)`` of a half tensor, ``x.clamp(max=300)`` of an ``int8`` one.  Which are refused is asked of
eager's own kernel, on tensors of a few elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from turret.graph.dtypes import FLOATS, INTEGERS
from turret.hooks.devices import HOST
from turret.torch_compat.dispatch import no_dispatch

aten = torch.ops.aten

_REFUSALS = ("without overflow", "argument alpha must not be")
"""What eager says where it refuses a number."""
_UNTRIED = (aten.arange, aten.range)
"""Ops whose numbers say how much memory they take."""
_STEPS = "steps"
"""The argument of ``linspace`` and ``logspace`` that says how much memory they take, and is no number to be refused."""


@functools.cache
def number_arguments(func: Any) -> dict[int, str]:
    """The arguments of an op of torch that are Python numbers and may be refused: positions and names."""
    if getattr(func, "namespace", "") != "aten" or func.overloadpacket in _UNTRIED:
        return {}
    if torch.Tag.nondeterministic_seeded in func.tags:
        return {}
    return {n: a.name for n, a in enumerate(func._schema.arguments) if "number" in str(a.type)}


def numbers_given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The numbers that a call is given for ``number_arguments``; those in lists, one by one."""
    for place, name in number_arguments(func).items():
        given = args[place] if place < len(args) else kwargs.get(name)
        yield from given if isinstance(given, (list, tuple)) else [given]


def refusal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: Any, tried: Any) -> str:
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

    names = [argument.name for argument in func._schema.arguments]
    with no_dispatch(), torch.no_grad():
        given = {name: small(value) for name, value in (*zip(names, args, strict=False), *kwargs.items())}
        if _STEPS in given:
            given[_STEPS] = 2
        try:
            func(*[given.pop(name) for name in names[: len(args)]], **given)
        except Exception as error:
            return str(error) if any(words in str(error) for words in _REFUSALS) else ""
    return ""


@attrs.frozen
class FloatLimits:
    """The finite floats from ``low`` to ``high``, which an op takes; ``others``: it takes infinities and NaN."""

    low: float
    high: float
    others: bool

    def hold(self, number: float) -> bool:
        """Whether the op takes a float."""
        return self.low <= number <= self.high if math.isfinite(number) else self.others

    def condition(self) -> str:
        """That a finite float is taken: an expression of Python, with a place for it."""
        return f"{self.low!r} <= {{0}} <= {self.high!r}"


def float_limits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: Any) -> FloatLimits | None:
    """The floats that a call takes in place of ``number``; None where it takes all."""
    refused = functools.partial(refusal, func, args, kwargs, number)
    others = not any(map(refused, (math.inf, -math.inf, math.nan)))
    most = torch.finfo(torch.float64).max
    if others and not refused(most) and not refused(-most):
        return None
    return FloatLimits(-_end(_ENDS, 0, lambda n: refused(-n)), _end(_ENDS, 0, refused), others)


def integer_limits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: Any) -> tuple[int, int] | None:
    """The ends of the integers of 64 bits that a call takes in place of ``number``; None where it takes all."""
    refused = functools.partial(refusal, func, args, kwargs, number)
    ends = torch.iinfo(torch.int64)
    if not refused(ends.max) and not refused(ends.min):
        return None
    whole = [int(end) for end in _ENDS if end < ends.max]
    return -_end(whole, 1, lambda n: refused(-n)), _end(whole, 1, refused)


def _end(ends: Sequence[Any], step: int, refused: Callable[[Any], Any]) -> Any:
    """The largest of some ends that is not refused while what comes next is; 0 where all are.

    ``step``: how far the next one lies; 0 for the next float.
    """
    taken = 0
    for end in ends:
        if refused(end):
            break
        taken = end
        if refused(end + step if step else math.nextafter(end, math.inf)):
            break
    return taken


_ALL_ENDS: list[Any] = [*map(torch.iinfo, INTEGERS), *map(torch.finfo, FLOATS)]
_ENDS = sorted({abs(float(end)) for ends in _ALL_ENDS for end in (ends.min, ends.max)} - {0.0})
"""How far from zero the numbers of dtypes lie."""
