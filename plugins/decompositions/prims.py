"""Primitive ops that torch's own decompositions leave behind, in terms of the op set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.plugins.decompositions.registry import decomposes
from turret.torch_compat.operators.layouts import type_to_dtype

aten = torch.ops.aten


@decomposes("prims.broadcast_in_dim", any_dtype=True)
def broadcast_in_dim(x: torch.Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> torch.Tensor:
    kept = iter(x.shape)
    aligned = [next(kept) if d in broadcast_dimensions else 1 for d in range(len(shape))]
    return aten.expand.default(aten.view.default(x, aligned) if x.dim() != len(shape) else x, list(shape))


@decomposes("prims.where", any_dtype=True)
def where(condition: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    dtype = next((v.dtype for v in (x, y) if isinstance(v, torch.Tensor)), None)
    if dtype is None:
        dtype = torch.get_default_dtype() if isinstance(x, float) else type_to_dtype(type(x))

    def tensor(value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        return aten.full.default([], value, dtype=dtype, device=condition.device, pin_memory=False)

    return aten.where.self(condition, tensor(x), tensor(y))


@decomposes("prims.div")
def div(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.dtype.is_floating_point:
        return aten.div.Tensor_mode(x, y, rounding_mode="trunc")
    return aten.div.Tensor(x, y)


@decomposes("prims.mul")
def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return aten.mul.Tensor(x, y)


@decomposes("prims.round")
def round_(x: torch.Tensor) -> torch.Tensor:
    return aten.round.default(x)


@decomposes("prims.sum")
def sum_(x: torch.Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    if not dims:
        return aten.clone.default(x)
    return aten.sum.dim_IntList(x, list(dims), False, dtype=output_dtype or x.dtype)


@decomposes("prims.view_of", any_dtype=True)
def view_of(x: torch.Tensor) -> torch.Tensor:
    return aten.alias.default(x)
