"""Numbers that the host computes from others, which depend on data: calls of these functions are nodes of a graph.

The trace cannot know whether an index is negative (and counts from the end) or too large, so that the host settles
it, once the index is known, and shapes are written in what comes of it.  Each such function works on ints and, for a
plan, on symbols (``expression``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import sympy
import torch

from turret.torch_compat.sizes import of_sizes


def bound_of_slice(index: int, extent: int) -> int:
    """Where a slice that is written ``[index:]`` or ``[:index]`` starts or ends, in ``range(extent + 1)``."""
    return max(0, min(position_of_element(index, extent), extent))


def position_of_element(index: int, extent: int) -> int:
    """Where the element at ``index`` is; outside of ``range(extent)`` where there is none."""
    return index + extent if index < 0 else index


def end_of_slice(end: int, start: int) -> int:
    """The end of a slice, which is empty where it ends before it starts."""
    return max(start, end)


def evaluated(text: str, names: tuple[str, ...], *values: Any) -> Any:
    """The number that Python source ``text`` gives for numbers of these names."""
    return eval(_compiled(text), {"math": math, "torch": torch}, dict(zip(names, values, strict=True)))


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    return compile(text, "<number>", "eval")


def _position(index: Any, extent: Any) -> sympy.Expr:
    return sympy.Piecewise((index + extent, index < 0), (index, True))


_EXPRESSIONS: dict[Callable[..., int], Callable[..., sympy.Expr]] = {
    bound_of_slice: lambda index, extent: of_sizes.Max(0, of_sizes.Min(_position(index, extent), extent)),
    position_of_element: _position,
    end_of_slice: lambda end, start: of_sizes.Max(start, end),
}


def expression(function: Any, args: Any) -> sympy.Expr | None:
    """What a call of one of these functions computes, over symbols; None for a call of something else."""
    write = _EXPRESSIONS.get(function) if callable(function) else None
    return None if write is None else write(*map(sympy.sympify, args))
