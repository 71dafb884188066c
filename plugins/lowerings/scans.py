"""Running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from turret.ir import cast, scan
from turret.lowering import Builder, TensorValue, compute_dtype, loop_variables
from turret.plugins.lowerings.registry import lowering


def _running(kind: Literal["sum", "prod"]) -> Callable[..., TensorValue]:
    def lower(b: Builder, x: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
        inner = compute_dtype(b.result.dtype)
        if inner == torch.bool:
            return NotImplemented
        if not x.shape or x.shape[dim] == 1:
            return b.define(b.result, lambda index: cast(x.load(index), b.result.dtype))
        along = loop_variables(x.shape)[dim % len(x.shape)]
        return b.define(b.result, lambda index: scan(kind, along, cast(cast(x.load(index), b.result.dtype), inner)))

    return lower


lowering("cumsum")(_running("sum"))
lowering("cumprod")(_running("prod"))
