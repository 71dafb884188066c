"""The negative log likelihood, added up and divided in float32 for half types, and its gradient as a formula.

How many targets there are is no number of a half type: 4,088 rounds to 4,096, and every loss of so many is as much too
small.  Kernels of GPUs divide before they round, and so does this.

For the gradient eager fills a tensor as large as the logits with zeros and writes one element of each row.  Comparing
every class with the target instead needs no memory: the formula runs inside the kernel that makes the gradient of the
logits.
"""

from __future__ import annotations

import torch

from turret.graph.dtypes import HALF
from turret.plugins.decompositions.registry import decomposes

aten = torch.ops.aten

_NONE, _MEAN = 0, 1
"""ATen's numbers for ``reduction="none"`` and ``"mean"``."""


@decomposes("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the sum of the weights of all targets, which is zero where nothing is added up.

    ``x``: (classes), (batch, classes) or (batch, classes, height, width); ``target`` lacks the classes.
    """
    dim = 0 if x.dim() < 2 else 1

    def of_target(value: torch.Tensor) -> torch.Tensor:
        found = aten.squeeze.dim(aten.gather.default(value, dim, aten.unsqueeze.default(known, dim)), dim)
        return found if value is not x else aten.neg.default(found)

    def scalar(value: float, like: torch.Tensor) -> torch.Tensor:
        return aten.full.default([], value, dtype=like.dtype, device=like.device, pin_memory=False)

    counted = aten.ne.Scalar(target, ignore_index)
    known = aten.where.self(counted, target, scalar(0, target))
    loss, weights = of_target(x), counted
    if weight is not None:
        along = [1] * x.dim()
        along[dim] = x.shape[dim]
        weights = of_target(aten.expand.default(aten.view.default(weight, along), x.shape))
        loss = aten.mul.Tensor(loss, weights)
        weights = aten.where.self(counted, weights, scalar(0.0, weights))
    loss = aten.where.self(counted, loss, scalar(0.0, loss))
    if reduction == _NONE and x.dim() > 1:
        return loss, scalar(0.0, x)
    dtype = torch.float32 if x.dtype in HALF else x.dtype
    total = aten.sum.default(weights, dtype=dtype)
    if reduction != _NONE:
        loss = aten.sum.default(loss, dtype=dtype)
    if reduction == _MEAN:
        loss = aten.div.Tensor(loss, total)
    return (_to(loss, x.dtype), _to(total, x.dtype))


def _to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)


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
