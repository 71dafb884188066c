"""Batch norm as statistics, one pointwise formula, and new values of the running statistics.

Half types compute in float32.  The running statistics are written by whoever traces the op that says so.
"""

from __future__ import annotations

from math import prod

import torch

from turret.graph.dtypes import compute_dtype
from turret.hooks.devices import HOST, uses_host_kernels
from turret.plugins.decompositions.registry import convert, decomposes, widen

aten = torch.ops.aten


@decomposes("_native_batch_norm_legit_no_training")
def inference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With the running statistics: on the CPU one scale and one shift per channel, as eager's kernel computes it."""
    dtype = compute_dtype(x.dtype)
    mean, rstd = convert(running_mean, dtype), _rstd(convert(running_var, dtype), eps)
    if not uses_host_kernels(x.device):
        return _normalized(x, weight, bias, mean, rstd), mean, rstd
    scale = rstd if weight is None else aten.mul.Tensor(rstd, convert(weight, dtype))
    shift = aten.neg.default(aten.mul.Tensor(mean, scale))
    if bias is not None:
        shift = aten.add.Tensor(shift, convert(bias, dtype))
    result = aten.add.Tensor(aten.mul.Tensor(widen(x), _per_channel(scale, x)), _per_channel(shift, x))
    if x.device.type != HOST.type:  # of the host's own alone torch foretells that no statistics are saved
        return convert(result, x.dtype), mean, rstd
    none = aten.full.default([0], 0.0, dtype=x.dtype, device=x.device, pin_memory=False)
    return convert(result, x.dtype), none, none


@decomposes("_native_batch_norm_legit.no_stats")
def training(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With the statistics of the batch, of which none are kept."""
    if not training or 0 in x.shape:
        return NotImplemented
    variance, mean = _moments(x)
    rstd = _rstd(variance, eps)
    saved = _saved_dtype(x, weight, bias)
    return _normalized(x, weight, bias, mean, rstd), convert(mean, saved), convert(rstd, saved)


@decomposes("_native_batch_norm_legit_functional")
def training_with_running_statistics(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """With the statistics of the batch, which are mixed into the running ones; those have unbiased variances."""
    if not training or 0 in x.shape:
        return NotImplemented
    variance, mean = _moments(x)
    rstd = _rstd(variance, eps)
    count = prod(x.shape[d] for d in range(x.dim()) if d != 1)
    unbiased = aten.div.Scalar(aten.mul.Scalar(variance, count), count - 1)
    saved = _saved_dtype(x, weight, bias, running_mean, running_var)
    return (
        _normalized(x, weight, bias, mean, rstd),
        convert(mean, saved),
        convert(rstd, saved),
        _mixed(running_mean, mean, momentum),
        _mixed(running_var, unbiased, momentum),
    )


@decomposes("native_batch_norm_backward")
def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_rstd: torch.Tensor | None,
    training: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    first, second = (save_mean, save_rstd) if training else (running_mean, running_var)
    if 0 in x.shape or first is None or second is None:
        return NotImplemented
    dtype, others = compute_dtype(x.dtype), [d for d in range(x.dim()) if d != 1]
    mean, rstd = convert(first, dtype), convert(second, dtype)
    if not training:
        rstd = _rstd(rstd, eps)
    centred, grad = aten.sub.Tensor(widen(x), _per_channel(mean, x)), widen(grad)
    total = aten.sum.dim_IntList(grad, others)
    along = aten.sum.dim_IntList(aten.mul.Tensor(grad, centred), others)
    of_x = None
    if output_mask[0]:
        of_x = grad
        if training:
            count = prod(x.shape[d] for d in others)
            slope = aten.mul.Tensor(aten.div.Scalar(along, count), aten.mul.Tensor(rstd, rstd))
            of_x = aten.sub.Tensor(of_x, aten.mul.Tensor(centred, _per_channel(slope, x)))
            of_x = aten.sub.Tensor(of_x, _per_channel(aten.div.Scalar(total, count), x))
        scale = rstd if weight is None else aten.mul.Tensor(rstd, convert(weight, dtype))
        of_x = convert(aten.mul.Tensor(of_x, _per_channel(scale, x)), x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    of_weight = convert(aten.mul.Tensor(along, rstd), kept) if output_mask[1] else None
    return of_x, of_weight, convert(total, kept) if output_mask[2] else None


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Biased variance and mean of each channel."""
    return aten.var_mean.correction(widen(x), [d for d in range(x.dim()) if d != 1], correction=0)


def _rstd(variance: torch.Tensor, eps: float) -> torch.Tensor:
    return aten.rsqrt.default(aten.add.Scalar(variance, eps))


def _per_channel(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return aten.view.default(values, [x.shape[1], *([1] * (x.dim() - 2))])


def _normalized(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> torch.Tensor:
    result = aten.mul.Tensor(aten.sub.Tensor(widen(x), _per_channel(mean, x)), _per_channel(rstd, x))
    if weight is not None:
        result = aten.mul.Tensor(result, _per_channel(convert(weight, result.dtype), x))
    if bias is not None:
        result = aten.add.Tensor(result, _per_channel(convert(bias, result.dtype), x))
    return convert(result, x.dtype)


def _mixed(running: torch.Tensor, found: torch.Tensor, momentum: float) -> torch.Tensor:
    kept = aten.mul.Scalar(convert(running, found.dtype), 1 - momentum)
    return convert(aten.add.Tensor(aten.mul.Scalar(found, momentum), kept), running.dtype)


def _saved_dtype(x: torch.Tensor, *others: torch.Tensor | None) -> torch.dtype:
    """Of the statistics that are saved: on the CPU the input's, unless float32 parameters go with a half input."""
    mixed = any(t is not None and t.dtype != x.dtype for t in others)
    return x.dtype if uses_host_kernels(x.device) and not mixed else compute_dtype(x.dtype)
