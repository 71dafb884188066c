"""Upsampling by nearest neighbours: each result element is one of the input's, each gradient a sum of a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.graph.dtypes import compute_dtype
from turret.ir import Expr, Index, Size, Var, cast, reduce
from turret.ir.lowering import Builder, TensorValue
from turret.plugins.lowerings.registry import lowering


def _factors(
    inner: Sequence[Size], outer: Sequence[Size], scales: Sequence[float | None], exact: bool
) -> list[int] | None:
    """How often each element is repeated along each dimension; None where that is not one number.

    Eager finds an element's source in float32, from a scale that the user may have given: every one is looked at.
    """
    factors = []
    for few, many, scale in zip(inner, outer, scales, strict=True):
        if not (isinstance(few, int) and isinstance(many, int)) or few == 0 or many % few:
            return None
        step = torch.tensor(1 / scale if scale is not None and scale > 0 else few / many, dtype=torch.float32)
        place = torch.arange(many, dtype=torch.float32) + (0.5 if exact else 0.0)
        source = (place * step).floor().long().clamp(max=few - 1)
        if not torch.equal(source, torch.arange(many) // (many // few)):
            return None
        factors.append(many // few)
    return factors


UNEVEN = "elements are not all repeated equally often"


def _nearest_lowering(rank: int, exact: bool) -> Callable[..., Any]:
    def lower(b: Builder, x: TensorValue, size: Sequence[Size], *scales: float | None) -> TensorValue:
        scales = scales or (None,) * rank
        factors = _factors(x.shape[-rank:], b.result_shape()[-rank:], scales, exact)
        if factors is None:
            return b.fallback(UNEVEN)

        def body(index: Sequence[Index]) -> Expr:
            places = [i // f for i, f in zip(index[-rank:], factors, strict=True)]
            return x.load([*index[:-rank], *places])

        return b.define(b.result, body)

    return lower


def _nearest_backward_lowering(rank: int, exact: bool) -> Callable[..., Any]:
    def lower(
        b: Builder, grad: TensorValue, size: Sequence[Size], shape: Sequence[Size], *scales: float | None
    ) -> TensorValue:
        scales = scales or (None,) * rank
        factors = _factors(b.result_shape()[-rank:], grad.shape[-rank:], scales, exact)
        if factors is None:
            return b.fallback(UNEVEN)
        dtype = compute_dtype(grad.dtype)
        variables = tuple(Var(f"r{k}", f) for k, f in enumerate(factors))

        def body(index: Sequence[Index]) -> Expr:
            places = [i * f + v for i, f, v in zip(index[-rank:], factors, variables, strict=True)]
            return reduce("sum", variables, cast(grad.load([*index[:-rank], *places]), dtype))

        return b.define(b.result, body)

    return lower


for _rank in (1, 2, 3):
    for _name, _exact in ((f"upsample_nearest{_rank}d", False), (f"_upsample_nearest_exact{_rank}d", True)):
        lowering(_name)(_nearest_lowering(_rank, _exact))
        lowering(f"{_name}_backward")(_nearest_backward_lowering(_rank, _exact))
