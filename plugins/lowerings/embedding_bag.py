"""Bags of embeddings: ATen's kernels, declared as they are."""

from __future__ import annotations

from typing import Any

import torch

from turret.hooks.devices import uses_host_kernels
from turret.ir.lowering import Builder, TensorValue
from turret.plugins.lowerings.registry import lowering

_SUM = 0


@lowering("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    b: Builder,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    scale_by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: TensorValue | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> Any:
    """The kernel maps no offsets to bags where it sums bfloat16 rows; its fake implementation says that it does."""
    layout = weight.strides()
    scaled = None if weights is None else weights.strides()
    quick = (
        uses_host_kernels(weight.device)
        and (weight.dtype, mode) == (torch.bfloat16, _SUM)
        and padding < 0
        and layout is not None
        and layout[0][1] == 1
        and (weights is None or (scaled is not None and scaled[0][0] == 1))
    )
    if not quick:
        return b.fallback("library kernel")
    result, bags, *rest = b.result
    args = (weight, indices, offsets, scale_by_frequency, mode, sparse, weights, include_last, padding)
    return b.extern(b.node.target, args, {}, [result, bags.new_empty(0), *rest], "library kernel")
