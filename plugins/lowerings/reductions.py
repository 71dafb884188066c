"""Reductions: each result is one reduction over row variables ``r0..`` of the input's reduced dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from turret.graph.dtypes import compute_dtype
from turret.ir import Expr, Index, Var, call, cast, constant, flatten, index_value, part, reduce, size_value
from turret.ir.expr import ReductionKind, from_zero
from turret.ir.index import product
from turret.ir.lowering import Builder, Number, TensorValue, rounded
from turret.plugins.lowerings.registry import lowering

Dims = int | Sequence[int] | None


class _Row:
    """The row of one reduction: its dimensions, variables, and the input at a point of result and row."""

    def __init__(self, x: TensorValue, dims: Dims, keepdim: bool) -> None:
        rank = len(x.shape)
        chosen = [dims] if isinstance(dims, int) else list(dims) if dims else list(range(rank))
        self.x, self.keepdim = x, keepdim
        self.dims = sorted({d % rank for d in chosen}) if rank else []
        self.variables = tuple(Var(f"r{k}", x.shape[d]) for k, d in enumerate(self.dims))

    def load(self, index: Sequence[Index], dtype: torch.dtype) -> Expr:
        """The input's element, as ``dtype``, at ``index`` of the result and the row variables."""
        rows = dict(zip(self.dims, self.variables, strict=True))
        kept = iter([i for d, i in enumerate(index) if not (self.keepdim and d in rows)])
        coords = [rows[d].index if d in rows else next(kept) for d in range(len(self.x.shape))]
        return cast(self.x.load(coords), dtype)

    @property
    def is_single(self) -> bool:
        """Known to hold one element."""
        return all(v.extent == 1 for v in self.variables)

    def number(self) -> Expr:
        """Row-major number of the element in the row."""
        return index_value(flatten([v.index for v in self.variables], [v.extent for v in self.variables]))


def _fold(
    b: Builder, kind: ReductionKind, x: TensorValue, dims: Dims, keepdim: bool, dtype: torch.dtype
) -> TensorValue:
    row = _Row(x, dims, keepdim)
    return b.define(b.result, lambda index: reduce(kind, row.variables, row.load(index, dtype)))


@lowering("sum.dim_IntList", "sum")
def sum_(
    b: Builder, x: TensorValue, dims: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorValue:
    return _accumulate(b, "sum", x, dims, keepdim)


def _accumulate(b: Builder, kind: Literal["sum", "prod"], x: TensorValue, dims: Dims, keepdim: bool) -> TensorValue:
    """A sum or product of terms that are converted to the result's dtype first."""
    row = _Row(x, dims, keepdim)

    def term(index: Sequence[Index]) -> Expr:
        return rounded(row.load(index, x.dtype), b.result.dtype)

    if kind == "sum" and row.is_single:
        return b.define(b.result, lambda index: from_zero(term(index)))
    return b.define(b.result, lambda index: reduce(kind, row.variables, term(index)))


@lowering("prod.dim_int")
def prod_dim(
    b: Builder, x: TensorValue, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorValue:
    return _accumulate(b, "prod", x, dim, keepdim)


@lowering("prod")
def prod(b: Builder, x: TensorValue, dtype: torch.dtype | None = None) -> TensorValue:
    return _accumulate(b, "prod", x, None, False)


def _extremum(kind: ReductionKind, logical: ReductionKind) -> Callable[..., TensorValue]:
    def lower(b: Builder, x: TensorValue, dims: Dims = (), keepdim: bool = False) -> TensorValue:
        dtype = compute_dtype(x.dtype)
        return _fold(b, logical if dtype == torch.bool else kind, x, dims, keepdim, dtype)

    return lower


lowering("amax")(_extremum("max", "any"))
lowering("amin")(_extremum("min", "all"))


def _truth(kind: ReductionKind) -> Callable[..., TensorValue]:
    def lower(b: Builder, x: TensorValue, dims: Dims = None, keepdim: bool = False) -> TensorValue:
        return _fold(b, kind, x, dims, keepdim, torch.bool)

    return lower


lowering("any", "any.dim", "any.dims")(_truth("any"))
lowering("all", "all.dim", "all.dims")(_truth("all"))


def _position(kind: ReductionKind) -> Callable[..., TensorValue]:
    def lower(b: Builder, x: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
        row = _Row(x, dim, keepdim)
        dtype = torch.int32 if x.dtype == torch.bool else compute_dtype(x.dtype)
        if row.is_single:
            return b.define(b.result, lambda index: constant(0, torch.int64))
        return b.define(b.result, lambda index: reduce(kind, row.variables, row.load(index, dtype), row.number()))

    return lower


lowering("argmax")(_position("argmax"))
lowering("argmin")(_position("argmin"))


@lowering("var_mean.correction")
def var_mean(
    b: Builder, x: TensorValue, dims: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    row = _Row(x, dims, keepdim)
    dtype = compute_dtype(x.dtype)
    count = product(v.extent for v in row.variables)
    correction = 1 if correction is None else correction

    def statistics(index: Sequence[Index]) -> Expr:
        return reduce("welford", row.variables, row.load(index, dtype))

    def variance(index: Sequence[Index]) -> Expr:
        degrees = call("sub", size_value(count, dtype), b.number(correction, dtype))
        degrees = call("max", degrees, constant(0, dtype))
        return call("div", part(statistics(index), "m2"), degrees)

    def mean(index: Sequence[Index]) -> Expr:
        return from_zero(row.load(index, dtype)) if row.is_single else part(statistics(index), "mean")

    return (
        b.define(b.result_part(0), variance, f"{b.node.name}_var"),
        b.define(b.result_part(1), mean, f"{b.node.name}_mean"),
    )
