"""Reductions in terms of the few that the op set has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.plugins.decompositions.registry import contiguous, decomposes

aten = torch.ops.aten
Dims = Sequence[int] | None


@decomposes("sum", any_dtype=True)
def sum_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.sum.dim_IntList(x, [], False, dtype=dtype)


@decomposes("max")
def max_all(x: torch.Tensor) -> torch.Tensor:
    return aten.amax.default(x, [])


@decomposes("min")
def min_all(x: torch.Tensor) -> torch.Tensor:
    return aten.amin.default(x, [])


@decomposes("max.dim")
def max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _extreme(aten.amax.default, aten.argmax.default, x, dim, keepdim)


@decomposes("min.dim")
def min_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _extreme(aten.amin.default, aten.argmin.default, x, dim, keepdim)


def _extreme(
    value_op: Any, index_op: Any, x: torch.Tensor, dim: int, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dtype == torch.bool:
        return value_op(x, [dim], keepdim), index_op(aten.clone.default(x).to(torch.uint8), dim, keepdim)
    return value_op(x, [dim], keepdim), index_op(x, dim, keepdim)


def _variance(
    x: torch.Tensor, dims: Dims, correction: float | None, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = list(dims) if dims else list(range(x.dim()))
    return aten.var_mean.correction(x, dims, correction=1 if correction is None else correction, keepdim=keepdim)


@decomposes("var.correction")
def var_correction(
    x: torch.Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    return _variance(x, dims, correction, keepdim)[0]


@decomposes("var.dim")
def var_dim(x: torch.Tensor, dims: Dims, unbiased: bool = True, keepdim: bool = False) -> torch.Tensor:
    return _variance(x, dims, int(unbiased), keepdim)[0]


@decomposes("var")
def var_all(x: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
    return _variance(x, None, int(unbiased), False)[0]


@decomposes("var_mean.dim")
def var_mean_dim(
    x: torch.Tensor, dims: Dims, unbiased: bool = True, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _variance(x, dims, int(unbiased), keepdim)


@decomposes("var_mean")
def var_mean_all(x: torch.Tensor, unbiased: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    return _variance(x, None, int(unbiased), False)


@decomposes("std.correction")
def std_correction(
    x: torch.Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    return aten.sqrt.default(_variance(x, dims, correction, keepdim)[0])


@decomposes("std.dim")
def std_dim(x: torch.Tensor, dims: Dims, unbiased: bool = True, keepdim: bool = False) -> torch.Tensor:
    return aten.sqrt.default(_variance(x, dims, int(unbiased), keepdim)[0])


@decomposes("std")
def std_all(x: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
    return aten.sqrt.default(_variance(x, None, int(unbiased), False)[0])


@decomposes("std_mean.correction")
def std_mean_correction(
    x: torch.Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = _variance(x, dims, correction, keepdim)
    return aten.sqrt.default(variance), mean


@decomposes("std_mean.dim")
def std_mean_dim(
    x: torch.Tensor, dims: Dims, unbiased: bool = True, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return std_mean_correction(x, dims, correction=int(unbiased), keepdim=keepdim)


@decomposes("std_mean")
def std_mean_all(x: torch.Tensor, unbiased: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    return std_mean_correction(x, None, correction=int(unbiased))


@decomposes("put", any_dtype=True)
def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> Any:
    if torch.are_deterministic_algorithms_enabled():
        return NotImplemented  # the op itself knows when to refuse or to warn
    flat = aten.view.default(contiguous(x), [-1])
    values = aten.view.default(contiguous(source), list(index.shape))
    return aten.view.default(aten.index_put.default(flat, [index], values, accumulate), list(x.shape))
