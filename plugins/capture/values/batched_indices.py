"""Indices under ``torch.vmap``: a tensor without dimensions stands for many numbers there, and selects as they do."""

from __future__ import annotations

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.sequences import List, Slice, Tuple

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def is_batched_index(t: Tracer, key: Value) -> bool:
    """Whether a key has such a number in it, while a function under ``torch.vmap`` is followed."""
    if "vmap" not in t.recorder.transforms():
        return False
    parts = key.items if type(key) is Tuple else [key]
    return any(is_number(t, v.realize()) for v in parts)


def take(t: Tracer, tensor: Value, key: Value) -> Value:
    """``tensor[key]``, the numbers in ``key`` that are tensors applied last, in one ``aten.index``."""
    parts = [v.realize() for v in (key.items if type(key) is Tuple else [key])]
    if all(_is_index(v) for v in parts):
        return t.recorder.call(torch.ops.aten.index.Tensor, [tensor, List(list(parts))], {})
    if any(_is_tensor(v) and not is_number(t, v) for v in parts):
        raise Unsupported("an index of numbers that are tensors, among tensors with dimensions")
    parts = _without_ellipsis(t, tensor, parts)
    first = [Slice([Constant(None)] * 3) if _is_tensor(v) else v for v in parts]
    left = tensor.get_item(t, Tuple(list(first)))
    gone = [isinstance(v, Constant) and type(v.value) is int for v in parts]
    chosen = [v if _is_tensor(v) else Constant(None) for v, g in zip(parts, gone, strict=True) if not g]
    return t.recorder.call(torch.ops.aten.index.Tensor, [left, List(list(chosen))], {})


def _is_tensor(value: Value) -> bool:
    return isinstance(getattr(value, "fake", None), torch.Tensor)


def _is_index(value: Value) -> bool:
    return _is_tensor(value) and value.fake.dtype in _INTEGERS  # type: ignore[attr-defined]


def is_number(t: Tracer, value: Value) -> bool:
    """Whether a value is a tensor without dimensions that holds an integer which only data tell."""
    return holds_integer(value) and value.known(t) is None  # type: ignore[attr-defined]


def holds_integer(value: Value) -> bool:
    """Whether a value is a tensor without dimensions that holds an integer."""
    fake = getattr(value, "fake", None)
    return isinstance(fake, torch.Tensor) and not fake.dim() and fake.dtype in _INTEGERS


def _without_ellipsis(t: Tracer, tensor: Value, parts: list[Value]) -> list[Value]:
    at = [n for n, v in enumerate(parts) if isinstance(v, Constant) and v.value is ...]
    if not at:
        return parts
    used = sum(not (isinstance(v, Constant) and v.value in (None, ...)) for v in parts)
    rest = tensor.fake.dim() - used  # type: ignore[attr-defined]
    return [*parts[: at[0]], *(Slice([Constant(None)] * 3) for _ in range(rest)), *parts[at[0] + 1 :]]
