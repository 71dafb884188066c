"""Indices that tensors without dimensions hold: an element or a bound of a slice is read from them, as eager does."""

from __future__ import annotations

from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.batched_indices import is_number
from turret.plugins.capture.values.sequences import Slice, Tuple


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
