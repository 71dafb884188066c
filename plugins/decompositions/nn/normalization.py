"""Softmax and the norms, written as reductions and pointwise ops that a scheduler can fuse.

Half types compute in float32 and round once at the end, as eager's kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from turret.graph.dtypes import compute_dtype
from turret.graph.op_traits import size_hint
from turret.hooks.devices import uses_host_kernels
from turret.plugins.decompositions.registry import contiguous, convert, decomposes, widen

aten = torch.ops.aten


def _is_empty(x: torch.Tensor) -> bool:
    """Whether it has no elements now, which becomes a guard; sizes that depend on data are taken as not empty."""
    return any(size_hint(size, 1) == 0 and bool(size == 0) for size in x.shape)


@decomposes("_softmax")
def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    result_dtype = torch.float32 if half_to_float else x.dtype
    wide = widen(x)
    if _is_empty(x):
        return contiguous(convert(aten.clone.default(wide), result_dtype))
    exponentials = aten.exp.default(aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True)))
    total = aten.sum.dim_IntList(exponentials, [dim], True)
    return contiguous(convert(aten.div.Tensor(exponentials, total), result_dtype))


@decomposes("_log_softmax")
def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    result_dtype = torch.float32 if half_to_float else x.dtype
    wide = widen(x)
    if _is_empty(x):
        return contiguous(convert(aten.clone.default(wide), result_dtype))
    shifted = aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    return contiguous(convert(aten.sub.Tensor(shifted, aten.log.default(total)), result_dtype))


@decomposes("_softmax_backward_data")
def softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    grad, output = widen(grad), widen(output)
    weighted = aten.mul.Tensor(grad, output)
    total = aten.sum.dim_IntList(weighted, [dim], True)
    return contiguous(convert(aten.sub.Tensor(weighted, aten.mul.Tensor(output, total)), input_dtype))


@decomposes("_log_softmax_backward_data")
def log_softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    grad, output = widen(grad), widen(output)
    total = aten.sum.dim_IntList(grad, [dim], True)
    return contiguous(convert(aten.sub.Tensor(grad, aten.mul.Tensor(aten.exp.default(output), total)), input_dtype))


@decomposes("native_layer_norm")
def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    if _is_empty(x):
        return NotImplemented
    normal, mean, rstd = _normalize(widen(x), dims, eps)
    result = convert(_affine(normal, weight, bias), x.dtype)
    stats_dtype = _statistics_dtype(x, weight, bias) if uses_host_kernels(x.device) else compute_dtype(x.dtype)
    return contiguous(result), convert(mean, stats_dtype), convert(rstd, stats_dtype)


def _statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype:
    """Eager keeps mean and rstd of half inputs in half unless a parameter is float."""
    mixed = any(p is not None and p.dtype != x.dtype for p in parameters)
    return compute_dtype(x.dtype) if mixed else x.dtype


def _normalize(x: torch.Tensor, dims: list[int], eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x`` with zero mean and unit variance over ``dims``, and the mean and rstd with the dims kept."""
    variance, mean = aten.var_mean.correction(x, dims, correction=0, keepdim=True)
    rstd = aten.rsqrt.default(aten.add.Scalar(variance, eps))
    return aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd), mean, rstd


def _affine(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    if weight is not None:
        x = aten.mul.Tensor(x, convert(weight, x.dtype))
    if bias is not None:
        x = aten.add.Tensor(x, convert(bias, x.dtype))
    return x


@decomposes("native_group_norm")
def group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    spatial: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if _is_empty(x):
        return NotImplemented
    channels_last = _channels_last_format(x)
    grouped = aten.view.default(contiguous(x), [batch, groups, channels // groups * spatial])
    wide = widen(grouped)
    normal, mean, rstd = _normalize(wide, [2], eps)
    split = [batch, groups, channels // groups, spatial]
    per_channel = [1, groups, channels // groups, 1]
    scale = None if weight is None else aten.view.default(weight, per_channel)
    shift = None if bias is None else aten.view.default(bias, per_channel)
    if scale is not None and uses_host_kernels(x.device):
        # Eager's kernel folds the mean into the shift, which shows where a weight is infinite.
        scale = aten.mul.Tensor(convert(scale, wide.dtype), aten.unsqueeze.default(rstd, 3))
        centre = aten.neg.default(aten.mul.Tensor(scale, aten.unsqueeze.default(mean, 3)))
        shift, normal = _affine(centre, None, shift), wide
    affine = _affine(aten.view.default(normal, split), scale, shift)
    result = convert(aten.view.default(affine, list(x.shape)), x.dtype)
    if channels_last is not None:
        result = aten.clone.default(result, memory_format=channels_last)
    stats_dtype = _statistics_dtype(x, weight, bias)
    return (
        result,
        convert(aten.view.default(mean, [batch, groups]), stats_dtype),
        convert(aten.view.default(rstd, [batch, groups]), stats_dtype),
    )


def _channels_last_format(x: torch.Tensor) -> torch.memory_format | None:
    """The channels-last format that eager's CPU group norm keeps, or None for contiguous."""
    if not uses_host_kernels(x.device) or x.is_contiguous():
        return None
    for rank, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == rank and x.is_contiguous(memory_format=memory_format):
            return memory_format
    return None


@decomposes("mean", "mean.dim")
def mean(
    x: torch.Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    result_dtype = dtype or x.dtype
    if not result_dtype.is_floating_point:
        return NotImplemented
    dims = list(dims) if dims else list(range(x.dim()))
    count = prod(x.shape[d] for d in dims) if x.dim() else 1
    total = aten.sum.dim_IntList(x, dims, keepdim, dtype=compute_dtype(result_dtype))
    return convert(aten.div.Scalar(total, count), result_dtype)
