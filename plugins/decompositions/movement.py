"""Views, splits and conversions in terms of the few view ops of the op set; right for every dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.plugins.decompositions.registry import convert, decomposes
from turret.torch_compat.operators.decompositions import torch_table

aten = torch.ops.aten


def _wrap(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


@decomposes("transpose.int", any_dtype=True)
def transpose(x: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    order = list(range(x.dim()))
    if order:
        dim0, dim1 = _wrap(dim0, x.dim()), _wrap(dim1, x.dim())
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return aten.permute.default(x, order)


@decomposes("t", any_dtype=True)
def t(x: torch.Tensor) -> torch.Tensor:
    return aten.permute.default(x, [1, 0]) if x.dim() == 2 else aten.alias.default(x)


@decomposes("squeeze", any_dtype=True)
def squeeze(x: torch.Tensor) -> torch.Tensor:
    return aten.squeeze.dims(x, list(range(x.dim())))


@decomposes("squeeze.dim", any_dtype=True)
def squeeze_dim(x: torch.Tensor, dim: int) -> torch.Tensor:
    return aten.squeeze.dims(x, [dim])


@decomposes("detach", any_dtype=True)
def detach(x: torch.Tensor) -> torch.Tensor:
    return aten.alias.default(x)


@decomposes("_unsafe_view", "_reshape_alias", any_dtype=True)
def unsafe_view(x: torch.Tensor, size: Sequence[int], stride: Sequence[int] | None = None) -> torch.Tensor:
    if stride is not None:
        return aten.as_strided.default(x, size, stride, x.storage_offset())
    return aten.view.default(x, size)


@decomposes("repeat", any_dtype=True)
def repeat(x: torch.Tensor, repeats: Sequence[int]) -> torch.Tensor:
    if not any(map(free_unbacked_symbols, (*x.shape, *repeats))):
        return torch_table[aten.repeat.default](x, repeats)
    shape = (*[1] * (len(repeats) - x.dim()), *x.shape)
    spread = [n for pair in zip([1] * len(shape), shape, strict=True) for n in pair]
    wanted = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    copied = aten.clone.default(aten.expand.default(x.reshape(spread), wanted))
    return copied.reshape([times * extent for times, extent in zip(repeats, shape, strict=True)])


@decomposes("split.Tensor", "unsafe_split.Tensor", any_dtype=True)
def split(x: torch.Tensor, split_size: int, dim: int = 0) -> list[torch.Tensor]:
    length = x.shape[dim]
    if not isinstance(length, int) or not isinstance(split_size, int):
        return NotImplemented
    if split_size == 0:
        return [aten.alias.default(x)]
    starts = range(0, max(length, 1), split_size)
    return [aten.slice.Tensor(x, dim, start, min(start + split_size, length)) for start in starts]


@decomposes("split_with_sizes", "unsafe_split_with_sizes", any_dtype=True)
def split_with_sizes(x: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(aten.slice.Tensor(x, dim, start, start + size))
        start = start + size
    return pieces


@decomposes("unbind.int", any_dtype=True)
def unbind(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    return [aten.select.int(x, dim, i) for i in range(x.shape[dim])]


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


@decomposes("_to_copy", any_dtype=True)
def to_copy(
    x: torch.Tensor | bool | int | float,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):  # a number that stands for a tensor, as transforms of functions pass it
        return aten.scalar_tensor.default(x, dtype=dtype or _NUMBERS[type(x)], device=device)
    dtype = dtype or x.dtype
    moves = device is not None and torch.device(device) != x.device
    if moves or pin_memory or layout not in (None, torch.strided) or x.layout != torch.strided:
        return NotImplemented
    if dtype != x.dtype:
        if dtype.is_complex or x.dtype.is_complex:
            return NotImplemented
        converted: torch.Tensor = torch.ops.prims.convert_element_type.default(x, dtype)
        if memory_format in (None, torch.preserve_format):
            return converted
        x = converted
    return aten.clone.default(x, memory_format=memory_format)


@decomposes("copy", any_dtype=True)
def copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if source.device != x.device or (source.dtype != x.dtype and (source.is_complex() or x.is_complex())):
        return NotImplemented
    if source.dtype != x.dtype:
        source = torch.ops.prims.convert_element_type.default(source, x.dtype)
    return aten.clone.default(aten.expand.default(source, list(x.shape)), memory_format=torch.contiguous_format)


@decomposes("take", any_dtype=True)
def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Torch's own reads an index without dimensions as a number."""
    return aten.index.Tensor(x.reshape(-1), [index])


@decomposes("index_fill.int_Scalar", "index_fill.int_Tensor", any_dtype=True)
def index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: complex | torch.Tensor) -> torch.Tensor:
    """Negative indices count from the end, unlike those of ``index_copy``."""
    if isinstance(value, torch.Tensor) and (value.dim() or value.is_complex() > x.is_complex()):
        return NotImplemented
    filled = x if x.dim() else x.unsqueeze(0)
    one = value if isinstance(value, torch.Tensor) else aten.full.default((), value, dtype=x.dtype, device=x.device)
    where = [*[None] * _wrap(dim, filled.dim()), index]
    written = aten.index_put.default(filled, where, convert(one, x.dtype))
    return written if x.dim() else aten.squeeze.dims(written, [0])
