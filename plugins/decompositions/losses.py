"""Losses where torch's own decomposition is slower than eager, or takes what eager refuses.

For the gradient of the negative log likelihood, eager fills a tensor as large as the logits with zeros and writes one
element of each row.  Comparing every class with the target instead needs no memory: the formula runs inside the kernel
that makes the gradient of the logits.
"""

from __future__ import annotations

import functools

import torch
from torch._decomp import decomposition_table as torch_table

from turret.plugins.decompositions.registry import decomposes

aten = torch.ops.aten

_MEAN = 1
_SUM = 2
"""ATen's numbers for ``reduction="mean"`` and ``reduction="sum"``."""


@decomposes("binary_cross_entropy")
def binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = _MEAN
) -> torch.Tensor:
    """Probabilities outside of [0, 1], which eager refuses, become an index out of range."""
    loss = torch_table[aten.binary_cross_entropy.default](x, target, weight, 0)
    inside = [
        compare(value, end) for value in (x, target) for compare, end in ((aten.ge.Scalar, 0), (aten.le.Scalar, 1))
    ]
    outside = aten.logical_not.default(functools.reduce(aten.logical_and.default, inside))
    one = aten.full.default([1], 1, dtype=loss.dtype, device=loss.device, pin_memory=False)
    position = torch.ops.prims.convert_element_type.default(outside, torch.int64)
    loss = aten.mul.Tensor(loss, aten.index.Tensor(one, [position]))
    if reduction == _MEAN:
        return aten.mean.default(loss)
    return aten.sum.default(loss) if reduction == _SUM else loss


@decomposes("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """``x``: (classes), (batch, classes) or (batch, classes, height, width); ``target`` lacks the classes."""
    dim = 0 if x.dim() < 2 else 1
    if reduction == _MEAN:
        grad = aten.div.Tensor(grad, total_weight)
    elif 0 < grad.dim() < x.dim():
        grad = aten.unsqueeze.default(grad, dim)
    along = [1] * x.dim()
    along[dim] = x.shape[dim]
    if weight is not None:
        grad = aten.mul.Tensor(grad, aten.view.default(weight, along))
    target = aten.unsqueeze.default(target, dim)
    classes = aten.arange.default(x.shape[dim], dtype=target.dtype, device=x.device, pin_memory=False)
    hit = aten.eq.Tensor(aten.view.default(classes, along), target)
    hit = aten.logical_and.default(hit, aten.ne.Scalar(target, ignore_index))
    zero = aten.full.default([], 0.0, dtype=x.dtype, device=x.device, pin_memory=False)
    return aten.where.self(hit, aten.neg.default(grad), zero)
