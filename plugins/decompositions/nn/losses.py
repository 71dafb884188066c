"""The gradient of the negative log likelihood as a pointwise formula.

Eager fills a tensor as large as the logits with zeros and writes one element of each row.  Comparing every class with
the target instead needs no memory: the formula runs inside the kernel that makes the gradient of the logits.
"""

from __future__ import annotations

import torch

from turret.plugins.decompositions.registry import decomposes

aten = torch.ops.aten

_MEAN = 1
"""ATen's number for ``reduction="mean"``."""


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
