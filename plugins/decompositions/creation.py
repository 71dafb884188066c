"""Creation ops as ``full``, ``empty`` and ``iota``, with the strides that eager gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.hooks.devices import HOST
from turret.plugins.decompositions.registry import convert, decomposes
from turret.torch_compat.operators.layouts import elementwise_permutation

aten = torch.ops.aten
_CHANNELS_LAST = {torch.channels_last: [0, 2, 3, 1], torch.channels_last_3d: [0, 2, 3, 4, 1]}


def _physical_order(x: torch.Tensor, memory_format: torch.memory_format | None) -> list[int]:
    """Dims of ``x`` from the slowest to the fastest in memory, as a ``*_like`` op lays them out."""
    if memory_format in _CHANNELS_LAST:
        return _CHANNELS_LAST[memory_format]
    if memory_format is torch.contiguous_format:
        return list(range(x.dim()))
    order = elementwise_permutation(x)
    return list(order[0] if isinstance(order, tuple) else order)  # some versions also say whether it is ambiguous


def _permuted(make: Any, shape: Sequence[int], order: list[int]) -> torch.Tensor:
    """A tensor of ``shape`` whose memory order of dims is ``order``; ``make`` creates it contiguous."""
    if order == list(range(len(order))):
        return make(list(shape))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return aten.permute.default(make([shape[d] for d in order]), inverse)


def full_like_layout(
    x: torch.Tensor,
    value: Any,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """``value`` everywhere, with the shape and the memory order of ``x``."""
    dtype, device = dtype or x.dtype, device if device is not None else x.device

    def make(shape: list) -> torch.Tensor:
        return aten.full.default(shape, value, dtype=dtype, device=device, pin_memory=False)

    return _permuted(make, x.shape, _physical_order(x, memory_format))


@decomposes("full_like", any_dtype=True)
def full_like(
    x: torch.Tensor,
    value: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if layout not in (None, torch.strided) or x.layout != torch.strided:
        return NotImplemented
    return full_like_layout(x, value, dtype, device, memory_format)


@decomposes("zeros_like", any_dtype=True)
def zeros_like(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return full_like(x, _typed(0, options.get("dtype") or x.dtype), **options)


@decomposes("ones_like", any_dtype=True)
def ones_like(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return full_like(x, _typed(1, options.get("dtype") or x.dtype), **options)


def _typed(value: int, dtype: torch.dtype) -> Any:
    """The Python number of ``dtype``'s kind."""
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else value


@decomposes("empty_like", any_dtype=True)
def empty_like(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if layout not in (None, torch.strided) or x.layout != torch.strided:
        return NotImplemented
    dtype, device = dtype or x.dtype, device if device is not None else x.device

    def make(shape: list) -> torch.Tensor:
        return aten.empty.memory_format(shape, dtype=dtype, device=device, pin_memory=False)

    return _permuted(make, x.shape, _physical_order(x, memory_format))


@decomposes("empty_permuted", any_dtype=True)
def empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> torch.Tensor:
    return _permuted(lambda shape: aten.empty.memory_format(shape, **options), size, list(physical_layout))


@decomposes("empty_strided", any_dtype=True)
def empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d])) if _all_ints(size, stride) else []
    expected, dense = 1, len(order) == len(size)
    for d in reversed(order):
        dense = dense and stride[d] == expected
        expected *= max(size[d], 1)
    if not dense:
        return NotImplemented
    return _permuted(lambda shape: aten.empty.memory_format(shape, **options), size, order)


@decomposes("new_empty_strided", any_dtype=True)
def new_empty_strided(
    x: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    device = device if device is not None else x.device
    return aten.empty_strided.default(size, stride, dtype=dtype or x.dtype, layout=layout, device=device)


def _all_ints(*sequences: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for sequence in sequences for value in sequence)


@decomposes("new_zeros", any_dtype=True)
def new_zeros(x: torch.Tensor, size: Sequence[int], **options: Any) -> torch.Tensor:
    return _new_full(x, size, 0, **options)


@decomposes("new_ones", any_dtype=True)
def new_ones(x: torch.Tensor, size: Sequence[int], **options: Any) -> torch.Tensor:
    return _new_full(x, size, 1, **options)


@decomposes("new_full", any_dtype=True)
def new_full(x: torch.Tensor, size: Sequence[int], value: Any, **options: Any) -> torch.Tensor:
    return _new_full(x, size, value, **options)


def _new_full(
    x: torch.Tensor,
    size: Sequence[int],
    value: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    if layout not in (None, torch.strided):
        return NotImplemented
    device = device if device is not None else x.device
    return aten.full.default(size, value, dtype=dtype or x.dtype, device=device, pin_memory=False)


@decomposes("_efficientzerotensor", any_dtype=True)
def efficient_zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    dtype, device = dtype or torch.get_default_dtype(), device if device is not None else HOST
    return aten.full.default(size, 0, dtype=dtype, device=device, pin_memory=False)


@decomposes("arange")
def arange(end: Any, **options: Any) -> torch.Tensor:
    return arange_step(0, end, 1, **options)


@decomposes("arange.start")
def arange_start(start: Any, end: Any, **options: Any) -> torch.Tensor:
    return arange_step(start, end, 1, **options)


@decomposes("arange.start_step")
def arange_step(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    integral = all(isinstance(v, (int, torch.SymInt)) for v in (start, end, step))
    dtype = dtype or (torch.int64 if integral else torch.get_default_dtype())
    symbolic = any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in (start, end, step))
    if layout not in (None, torch.strided) or (not integral and symbolic) or step == 0:
        return NotImplemented
    length = _arange_length(start, end, step)
    options = {"device": device if device is not None else HOST, "requires_grad": False}
    if integral:
        # Eager computes a float result in double from the first value and the step.
        index_dtype = dtype if not dtype.is_floating_point and dtype != torch.bool else torch.int64
        result = torch.ops.prims.iota.default(length, start=start, step=step, dtype=index_dtype, **options)
        return convert(result, dtype)
    index = torch.ops.prims.iota.default(length, start=0, step=1, dtype=torch.int64, **options)
    wide = torch.ops.prims.convert_element_type.default(index, torch.float64)
    return convert(aten.add.Scalar(aten.mul.Scalar(wide, step), start), dtype)


def _arange_length(start: Any, end: Any, step: Any) -> Any:
    if all(isinstance(v, (int, torch.SymInt)) for v in (start, end, step)):
        span = end - start + (step - 1 if step > 0 else step + 1)
        return torch.sym_max(span // step, 0)
    quotient = (end - start) / step
    return int(-(-quotient // 1))
