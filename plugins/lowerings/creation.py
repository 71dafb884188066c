"""Tensors made from nothing: filled, counted, random."""

from __future__ import annotations

from typing import Any

import torch

from turret.ir import Index, Size, call, flatten, index_value, random, size
from turret.ir.expr import RandomKind
from turret.ir.lowering import Builder, Number, TensorValue
from turret.plugins.lowerings.registry import lowering


@lowering("full", "full_like")
def full(b: Builder, shape: Any, value: Number | TensorValue, **_: Any) -> TensorValue:
    dtype = b.result.dtype
    return b.define(b.result, lambda index: b.operand(value, index, dtype))


@lowering("scalar_tensor")
def scalar_tensor(b: Builder, value: Number, **_: Any) -> TensorValue:
    return b.define(b.result, lambda index: b.number(value, b.result.dtype))


@lowering("empty.memory_format")
def empty(b: Builder, shape: Any, **_: Any) -> TensorValue:
    """Zeros: what nobody may read costs nothing once it is dropped, and what somebody reads is at least the same
    in every run."""
    return b.define(b.result, lambda index: b.number(0, b.result.dtype))


@lowering("prims.iota")
def iota(b: Builder, length: Size, *, start: Number, step: Number, **_: Any) -> TensorValue:
    def body(index: tuple[Index, ...]) -> Any:
        if isinstance(start, int) and isinstance(step, int):
            return index_value(index[0] * step + start)
        scaled = call("mul", index_value(index[0]), b.number(step, torch.int64))
        return call("add", scaled, b.number(start, torch.int64))

    return b.define(b.result, body)


@lowering("turret.random")
def turret_random(
    b: Builder, seed: TensorValue, shape: Any, stream: int, kind: RandomKind, dtype: torch.dtype
) -> TensorValue:
    """Numbers of a stream; dtypes whose bits are laid out otherwise than float32's run the reference."""
    if dtype not in (torch.float32, torch.int64) or (kind == "bits") != (dtype == torch.int64):
        return NotImplemented

    def body(index: tuple[Index, ...]) -> Any:
        linear = flatten(index, [size(extent) for extent in b.result.shape])
        return random(kind, seed.load(()), index_value(linear), stream)

    return b.define(b.result, body)
