"""Positions along a dimension, checked while capturing: fake tensors take some that real ones refuse.

A position may be a symbol.  The check is a guard then, so that a graph never raises for it at a later call, where the
effects of the lines before would be lost if the graph has written to memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch


def check_positions(target: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise ``IndexError`` where a call takes an element that is outside of a dimension."""
    pairs = _READERS.get(target)
    if pairs is None or not args or not isinstance(args[0], torch.Tensor):
        return
    for dim, index in pairs(*args, **kwargs):
        if not -args[0].dim() <= dim < args[0].dim():
            return  # which is refused in its own words
        size = args[0].shape[dim]
        if _is_known(index) and _is_known(size) and not -size <= index < size:
            raise IndexError(f"index {index} is out of range for dimension {dim} of size {size}")


def _is_known(number: Any) -> bool:
    """Whether a number is one, or a symbol whose value does not depend on data."""
    return type(number) is int or (isinstance(number, torch.SymInt) and number.node.has_hint())


def _of_select(input: Any, dim: Any = None, index: Any = None) -> Iterator[tuple[int, Any]]:
    if type(dim) is int:
        yield dim, index


def _of_scatter(input: Any, src: Any = None, dim: Any = None, index: Any = None) -> Iterator[tuple[int, Any]]:
    yield from _of_select(input, dim, index)


def _of_item(input: Any, key: Any = None, value: Any = None) -> Iterator[tuple[int, Any]]:
    """The numbers ahead of the first part of a key that may take any count of dimensions."""
    for dim, part in enumerate(key if isinstance(key, tuple) else (key,)):
        if type(part) is not slice and not _is_known(part):
            return
        yield dim, part


_READERS: dict[Any, Callable[..., Iterator[tuple[int, Any]]]] = {
    **dict.fromkeys(("select", torch.select, torch.Tensor.select), _of_select),
    **dict.fromkeys(("select_scatter", torch.select_scatter, torch.Tensor.select_scatter), _of_scatter),
    **dict.fromkeys(("__getitem__", "__setitem__", operator.getitem, operator.setitem), _of_item),
}
