"""Indices and sizes that tensors without dimensions hold: they are read from them, as eager does."""

from __future__ import annotations

from typing import Any

import torch

from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.batched_indices import holds_integer, is_number
from turret.plugins.capture.values.sequences import List, Slice, Tuple

_SIZED = frozenset({torch.empty, torch.full, torch.ones, torch.rand, torch.randn, torch.zeros})
_SIZED_METHODS = frozenset(
    {"expand", "new_empty", "new_full", "new_ones", "new_zeros", "repeat", "reshape", "tile", "view"}
)
"""What sizes are given to, as numbers or a sequence of them."""


def sizes_read(t: Tracer, target: Any, args: list[Value]) -> list[Value]:
    """The arguments of an operation that is given sizes, with those read that tensors hold."""
    if target not in (_SIZED_METHODS if isinstance(target, str) else _SIZED) or "vmap" in t.recorder.transforms():
        return args
    given = args[1:] if isinstance(target, str) else args
    return args[: len(args) - len(given)] + [_size_read(t, v.realize()) for v in given]


def _size_read(t: Tracer, size: Value) -> Value:
    if isinstance(size, (List, Tuple)) and any(holds_integer(v.realize()) for v in size.items):
        return Tuple([_size_read(t, v.realize()) for v in size.items])
    return size.call_method(t, "item", [], {}) if holds_integer(size) else size


def numbers_read(t: Tracer, key: Value) -> Value:
    """The key with such numbers read, where it asks for elements and slices alone; else the key itself."""
    if "vmap" in t.recorder.transforms():
        return key
    parts = [v.realize() for v in (key.items if type(key) is Tuple else [key])]
    if not any(_holds_number(t, v) for v in parts) or not all(_is_plain(t, v) for v in parts):
        return key
    read = [_read(t, v) for v in parts]
    return Tuple(read) if type(key) is Tuple else read[0]


def _holds_number(t: Tracer, part: Value) -> bool:
    bounds = [v.realize() for v in part.parts] if isinstance(part, Slice) else [part]
    return any(is_number(t, v) for v in bounds)


def _is_plain(t: Tracer, part: Value) -> bool:
    """Whether a part of a key is a number, a slice, None or an ellipsis: no mask, and no list of indices."""
    if isinstance(part, Constant):
        return type(part.value) is int or part.value in (None, ...)
    return isinstance(part, Slice) or is_number(t, part) or part.type() is int


def _read(t: Tracer, part: Value) -> Value:
    if isinstance(part, Slice):
        return Slice([_read(t, v.realize()) for v in part.parts])
    return part.call_method(t, "item", [], {}) if is_number(t, part) else part
