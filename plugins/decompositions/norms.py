"""Vector norms."""

from __future__ import annotations

import math

import torch

from turret.graph.dtypes import compute_dtype
from turret.plugins.decompositions.registry import convert, decomposes

aten = torch.ops.aten


@decomposes("linalg_vector_norm")
def vector_norm(
    x: torch.Tensor,
    ord: float = 2.0,
    dim: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sums of powers, maxima, minima or counts of absolute values; torch's own keeps dims of size 1 before 2.12."""
    if (
        x.dtype.is_complex
        or (dtype is not None and dtype.is_complex)
        or any(isinstance(s, int) and s == 0 for s in x.shape)
    ):
        return NotImplemented
    result = dtype or x.dtype
    dims = list(range(x.dim())) if dim is None else list(dim)
    size = aten.abs.default(convert(x, compute_dtype(result)))
    if math.isinf(ord):
        norm = (aten.amax if ord > 0 else aten.amin).default(size, dims, keepdim)
    elif ord == 0:
        norm = aten.sum.dim_IntList(convert(aten.ne.Scalar(x, 0), size.dtype), dims, keepdim)
    elif ord == 1:
        norm = aten.sum.dim_IntList(size, dims, keepdim)
    elif ord == 2:
        norm = aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(size, size), dims, keepdim))
    else:
        total = aten.sum.dim_IntList(aten.pow.Tensor_Scalar(size, ord), dims, keepdim)
        norm = aten.pow.Tensor_Scalar(total, 1.0 / ord)
    return convert(norm, result)
