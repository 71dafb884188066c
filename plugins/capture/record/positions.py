"""Positions along a dimension, checked while capturing: fake tensors take some that real ones refuse.

A position may be a symbol.  The check is a guard then, so that a graph never raises for it at a later call, where the
effects of the lines before would be lost if the graph has written to memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from turret.plugins.capture.facts.known_data import KnownData


def check_positions(target: Any, args: list[Any], kwargs: dict[str, Any], known: KnownData) -> None:
    """Raise ``IndexError`` where a call takes an element that is outside of a dimension."""
    pairs = _READERS.get(target)
    if pairs is None or not args or not isinstance(args[0], torch.Tensor):
        return
    for dim, index in pairs(known, *args, **kwargs):
        if not -args[0].dim() <= dim < args[0].dim():
            return  # which is refused in its own words
        size = args[0].shape[dim]
        if _is_known(index) and _is_known(size) and not -size <= index < size:
            raise IndexError(f"index {index} is out of range for dimension {dim} of size {size}")


def _is_known(number: Any) -> bool:
    """Whether a number is one, or a symbol whose value does not depend on data."""
    return type(number) is int or (isinstance(number, torch.SymInt) and number.node.has_hint())


def _of_select(known: KnownData, input: Any, dim: Any = None, index: Any = None) -> Iterator[tuple[int, Any]]:
    if type(dim) is int:
        yield from ((dim, number) for number in _numbers(known, index))


def _of_scatter(
    known: KnownData, input: Any, src: Any = None, dim: Any = None, index: Any = None
) -> Iterator[tuple[int, Any]]:
    yield from _of_select(known, input, dim, index)


def _of_item(known: KnownData, input: Any, key: Any = None, value: Any = None) -> Iterator[tuple[int, Any]]:
    """The numbers ahead of the first part of a key that may take any count of dimensions."""
    for dim, part in enumerate(key if isinstance(key, tuple) else (key,)):
        if type(part) is slice:
            continue
        numbers = _numbers(known, part)
        if not numbers:
            return
        yield from ((dim, number) for number in numbers)


def _numbers(known: KnownData, part: Any) -> list[Any]:
    """The numbers that a part of a key consists of; none where they depend on data, or are a mask."""
    if isinstance(part, torch.Tensor):
        numbers = known.elements(part) if part.dtype in _INTEGERS else None
    else:
        numbers = part if isinstance(part, list) else [part]  # lists in a list may be a tuple to torch
    return numbers if numbers and all(map(_is_known, numbers)) else []


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)

_READERS: dict[Any, Callable[..., Iterator[tuple[int, Any]]]] = {
    **dict.fromkeys(("select", torch.select, torch.Tensor.select), _of_select),
    **dict.fromkeys(("index_select", torch.index_select, torch.Tensor.index_select), _of_select),
    **dict.fromkeys(("select_scatter", torch.select_scatter, torch.Tensor.select_scatter), _of_scatter),
    **dict.fromkeys(("__getitem__", "__setitem__", operator.getitem, operator.setitem), _of_item),
}
