"""Running sums and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from turret.graph.dtypes import compute_dtype
from turret.ir import Expr, Index, cast, scan
from turret.ir.expr import from_zero
from turret.ir.lowering import Builder, TensorValue, loop_variables
from turret.plugins.lowerings.registry import lowering


def _running(kind: Literal["sum", "prod"]) -> Callable[..., TensorValue]:
    def lower(b: Builder, x: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
        inner = compute_dtype(b.result.dtype)
        if inner == torch.bool:
            return NotImplemented

        def single(value: Expr) -> Expr:
            # Sums along a dimension start at +0, which shows for -0; a tensor without dimensions is copied.
            return from_zero(value) if kind == "sum" and x.shape else value

        if not x.shape or x.shape[dim] == 1:
            return b.define(b.result, lambda index: single(cast(x.load(index), b.result.dtype)))
        along = loop_variables(b.result_shape())[dim % len(x.shape)]

        def term(index: Sequence[Index]) -> Expr:  # rounded where the dtype asked for is a half type
            return cast(cast(x.load(index), b.result.dtype, exact=True), inner)

        return b.define(b.result, lambda index: scan(kind, along, term(index)))

    return lower


lowering("cumsum")(_running("sum"))
lowering("cumprod")(_running("prod"))
