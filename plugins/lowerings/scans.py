"""Running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from turret.graph.dtypes import compute_dtype
from turret.ir import Expr, cast, scan
from turret.ir.expr import from_zero
from turret.ir.lowering import Builder, TensorValue, loop_variables, rounded
from turret.plugins.lowerings.registry import lowering


def _running(kind: Literal["sum", "prod"]) -> Callable[..., TensorValue]:
    def lower(b: Builder, x: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
        if compute_dtype(b.result.dtype) == torch.bool:
            return NotImplemented

        def single(value: Expr) -> Expr:
            # Sums along a dimension start at +0, which shows for -0; a tensor without dimensions is copied.
            return from_zero(value) if kind == "sum" and x.shape else value

        if not x.shape or x.shape[dim] == 1:
            return b.define(b.result, lambda index: single(cast(x.load(index), b.result.dtype)))
        along = loop_variables(b.result_shape())[dim % len(x.shape)]
        return b.define(b.result, lambda index: scan(kind, along, rounded(x.load(index), b.result.dtype)))

    return lower


lowering("cumsum")(_running("sum"))
lowering("cumprod")(_running("prod"))
