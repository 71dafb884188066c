"""Views: how a write to one is carried back to what it views, and views that return several tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from turret.errors import UnsupportedError
from turret.graph.fakes.sizes import guarded_apart, is_dense
from turret.plugins.joint.storage import Storage, ViewStep
from turret.torch_compat.operators.layouts import is_contiguous_or_false

aten = torch.ops.aten

IDENTITIES = frozenset((aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default))
"""Views that show all of their argument as it is: in a graph of values they are nothing."""


def write_back(step: ViewStep, base: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``base`` with what ``step`` shows of it replaced by ``value``; runs functional ops on tracked tensors."""
    rule = _WRITE_BACK.get(step.op)
    if rule is None:
        raise UnsupportedError(f"a write to the result of {step.op} is not supported")
    return rule(base, value, *step.args, **step.kwargs)


def _reshaped(base: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return reshape(value, base.shape)


def reshape(value: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """``value`` in another shape, through a contiguous copy where its strides ask for one."""
    try:
        return aten.view.default(value, list(shape))
    except (RuntimeError, ValueError):
        return aten.view.default(contiguous(value), list(shape))


def contiguous(value: torch.Tensor) -> torch.Tensor:
    """``value`` in row-major order."""
    return aten.clone.default(value, memory_format=torch.contiguous_format)


def flat(value: torch.Tensor, dims: Sequence[int], count: Any) -> torch.Tensor:
    """``value``'s elements one after another in memory, its dimensions taken in the order ``dims``."""
    row = reshape(aten.permute.default(value, list(dims)), [count])
    return row if is_contiguous_or_false(row) else contiguous(row)


def _flattened(base: torch.Tensor, value: torch.Tensor, dims: Sequence[int], count: Any) -> torch.Tensor:
    return _permuted(base, reshape(value, [base.shape[d] for d in dims]), dims)


def steps_from_base(chain: tuple[ViewStep, ...], storage: Storage) -> tuple[ViewStep, ...]:
    """The views that lead from the base of a storage to a tensor.

    ``as_strided`` shows the storage, whatever was viewed before it: so that it does in values, which have no storage,
    those views give way to one of all of the base's elements, in the order in which they lie in memory.
    """
    at = max((n for n, step in enumerate(chain) if step.op is aten.as_strided.default), default=None)
    if at is None or (storage.group is not None and at == 0):
        return chain
    base = storage.tensor
    if base is None or storage.group is not None or not is_dense(base.shape, base.stride()):
        raise UnsupportedError("as_strided of a tensor whose memory is not a dense block of its own")
    if any(step.op in _REINTERPRETING for step in chain[:at]):
        raise UnsupportedError("as_strided of memory that is viewed as real, complex, conjugated or negated numbers")
    order = sorted(range(base.dim()), key=lambda d: (-base.stride(d), d))
    dtypes = tuple(step for step in chain[:at] if step.op is aten.view.dtype)[-1:]
    size, stride, offset = chain[at].args
    start = base.storage_offset()
    if not (isinstance(start, int) and start == 0):
        if dtypes or not guard_or_false(offset >= start):
            raise UnsupportedError("as_strided of memory from before where an input begins in it")
        offset = offset - start
    strided = ViewStep(aten.as_strided.default, (size, stride, offset))
    return (ViewStep(flat, (order, base.numel())), *dtypes, strided, *chain[at + 1 :])


def _expanded(base: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if value.numel() != base.numel():
        raise UnsupportedError("a write to an expanded tensor, several of whose elements are one place in memory")
    return reshape(value, base.shape)


def _permuted(base: torch.Tensor, value: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    inverse = sorted(range(len(dims)), key=lambda d: dims[d] % len(dims))
    return aten.permute.default(value, inverse)


def _slice(base, value, dim=0, start=None, end=None, step=1):
    return aten.slice_scatter.default(base, value, dim, start, end, step)


def _select(base, value, dim, index):
    return aten.select_scatter.default(base, value, dim, index)


def _diagonal(base, value, offset=0, dim1=0, dim2=1):
    return aten.diagonal_scatter.default(base, value, offset, dim1, dim2)


def _as_strided(base, value, size, stride, storage_offset=None):
    if not guarded_apart(size, stride):
        raise UnsupportedError("a write to a strided view, several of whose elements are one place in memory")
    if not is_dense(base.shape, base.stride()):
        raise UnsupportedError("a write to a strided view of a tensor that leaves gaps in its memory")
    return aten.as_strided_scatter.default(base, value, size, stride, storage_offset)


def _unfold(base, value, dimension, size, step):
    if step < size:
        raise UnsupportedError("a write to overlapping windows of unfold")
    dimension = dimension % max(base.dim(), 1)
    windows = value.movedim(-1, dimension + 1)
    count = value.shape[dimension]
    result = base
    for number in range(size):
        last = number + (count - 1) * step + 1
        column = windows.select(dimension + 1, number)
        result = aten.slice_scatter.default(result, column, dimension, number, last, step)
    return result


def _dtype(base: torch.Tensor, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if 0 in value.shape:
        return base  # nothing was written, and elements that are not there need not lie next to each other
    return aten.view.dtype(value if value.element_size() == base.element_size() else _packed(value), base.dtype)


def _packed(value: torch.Tensor) -> torch.Tensor:
    """The value, several elements of which are one of another dtype, where they have to lie side by side."""
    if value.is_contiguous() and not value.storage_offset():
        return value
    return aten.clone.default(value, memory_format=torch.contiguous_format)


_REINTERPRETING = frozenset(
    (aten.view_as_real.default, aten.view_as_complex.default, aten._conj.default, aten._neg_view.default)
)
_WRITE_BACK: dict[Any, Callable[..., torch.Tensor]] = {
    flat: _flattened,
    aten.view.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten._reshape_alias.default: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.expand.default: _expanded,
    aten.t.default: lambda base, value: aten.t.default(value),
    aten.transpose.int: lambda base, value, a, b: aten.transpose.int(value, a, b),
    aten.permute.default: _permuted,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _as_strided,
    aten.unfold.default: _unfold,
    aten.view.dtype: _dtype,
    aten.view_as_real.default: lambda base, value: aten.view_as_complex.default(_packed(value)),
    aten.view_as_complex.default: lambda base, value: aten.view_as_real.default(value),
    aten._conj.default: lambda base, value: aten._conj_physical.default(value),
    aten._neg_view.default: lambda base, value: aten.neg.default(value),
}


def parts(op: Any, source: torch.Tensor, args: tuple, kwargs: dict[str, Any]) -> list[tuple[Any, tuple]] | None:
    """The single views that a view with several results consists of, or None for other views."""
    rule = _PARTS.get(op)
    return None if rule is None else rule(source, *args, **kwargs)


def _unbind(source: torch.Tensor, dim: int = 0) -> list[tuple[Any, tuple]]:
    return [(aten.select.int, (dim, index)) for index in range(int(source.shape[dim]))]


def _split(source: torch.Tensor, split_size: Any, dim: int = 0) -> list[tuple[Any, tuple]]:
    length = source.shape[dim]
    count = max((length + split_size - 1) // split_size, 1) if split_size else 1
    sizes = [split_size] * (int(count) - 1)
    return _split_with_sizes(source, [*sizes, length - split_size * len(sizes)], dim)


def _split_with_sizes(source: torch.Tensor, sizes: Sequence[Any], dim: int = 0) -> list[tuple[Any, tuple]]:
    steps, start = [], 0
    for extent in sizes:
        steps.append((aten.slice.Tensor, (dim, start, start + extent)))
        start = start + extent
    return steps


_PARTS: dict[Any, Callable[..., list[tuple[Any, tuple]]]] = {
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split_with_sizes,
}
