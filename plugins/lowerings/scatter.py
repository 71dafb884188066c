"""Writes to computed positions: each op is a copy of a tensor and a ``Scatter`` on top of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.errors import UnsupportedError
from turret.ir import Expr, Index, Size, call, cast, constant
from turret.ir.index import product
from turret.ir.program import ScatterMode
from turret.lowering import Builder, Number, TensorValue, compute_dtype
from turret.plugins.lowerings.indexing import advanced, taken
from turret.plugins.lowerings.registry import lowering

Source = TensorValue | Number
Coords = Callable[[tuple[Index, ...]], Sequence[Index]]


def _scattered(
    b: Builder,
    base: TensorValue,
    loops: Sequence[Size],
    coords: Coords,
    value: Callable[[tuple[Index, ...]], Expr],
    mode: ScatterMode,
) -> TensorValue:
    """``base`` with ``value(i)`` combined into the element at ``coords(i)``, for all ``i`` in ``loops``.

    Half types are combined in float32 and rounded once, unless they are only set.
    """
    dtype = base.dtype if mode == "set" else compute_dtype(base.dtype)
    if base.dtype == torch.bool and mode != "set":
        mode = {"add": "max", "mul": "min"}.get(mode, mode)
    if dtype == b.result.dtype:
        return b.scatter(b.result, base, loops, coords, value, mode)
    wide = b.result.to(dtype)
    start = b.define(wide, lambda index: cast(base.load(index), dtype), f"{b.node.name}_wide")
    result = b.scatter(wide, start, loops, coords, value, mode)
    return b.define(b.result, result.load)


# ---------------------------------------------------------------- scatter along one dimension


class _Along:
    """The loops of a scatter along a dimension: the index tensor's points, and where each of them goes.

    0-dim tensors count as 1-dim ones of one element.
    """

    def __init__(self, x: TensorValue, dim: int, indices: TensorValue) -> None:
        self.x, self.indices = x, indices
        self.dim = dim % max(1, len(x.shape))
        self.loops = tuple(indices.shape) if indices.shape or not x.shape else (1,)

    def coords(self, index: tuple[Index, ...]) -> list[Index]:
        if not self.x.shape:
            return []
        chosen = taken(self.read(self.indices, index), self.x.shape[self.dim], wraps=False)
        return [chosen if d == self.dim else i for d, i in enumerate(index)]

    def read(self, tensor: TensorValue, index: tuple[Index, ...]) -> Expr:
        return tensor.load(index if tensor.shape else ())


def _scatter(
    b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: Source, mode: ScatterMode, base: Any = None
) -> TensorValue:
    if len(indices.shape) > max(1, len(x.shape)) or (not x.shape and product(indices.shape) != 1):
        return NotImplemented
    along = _Along(x, dim, indices)
    dtype = x.dtype if mode == "set" else compute_dtype(x.dtype)

    def value(index: tuple[Index, ...]) -> Expr:
        if isinstance(source, TensorValue):
            return cast(along.read(source, index), dtype)
        return cast(b.number(source, x.dtype), dtype)

    return _scattered(b, x if base is None else base, along.loops, along.coords, value, mode)


@lowering("scatter.src", "scatter.value")
def scatter(b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: Source) -> TensorValue:
    return _scatter(b, x, dim, indices, source, "set")


@lowering("scatter_add")
def scatter_add(b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue) -> TensorValue:
    return _scatter(b, x, dim, indices, source, "add")


_MODES: dict[str, ScatterMode] = {
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


@lowering("scatter.reduce", "scatter.value_reduce")
def scatter_with(
    b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: Source, *, reduce: str
) -> TensorValue:
    return _scatter(b, x, dim, indices, source, _MODES[reduce])


@lowering("scatter_reduce.two")
def scatter_reduce(
    b: Builder,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    """A mean of half types, or of elements of their own apart from the tensor's, stays whole."""
    if reduce not in _MODES:
        return NotImplemented
    if include_self:
        return _scatter(b, x, dim, indices, source, _MODES[reduce])
    along = _Along(x, dim, indices)
    if len(indices.shape) > max(1, len(x.shape)) or (not x.shape and product(indices.shape) != 1):
        return NotImplemented
    flags = b.result.to(torch.bool)
    clear = b.define(flags, lambda index: constant(False, torch.bool), f"{b.node.name}_none")
    hit = b.scatter(flags, clear, along.loops, along.coords, lambda index: constant(True, torch.bool), "set")
    start = b.number(_identity(_MODES[reduce], x.dtype), x.dtype)
    base = b.define(
        b.result, lambda index: call("where", hit.load(index), start, x.load(index)), f"{b.node.name}_start"
    )
    return _scatter(b, x, dim, indices, source, _MODES[reduce], base)


def _identity(mode: ScatterMode, dtype: torch.dtype) -> Number:
    """The value that changes nothing when it is combined."""
    if mode in ("add", "mul"):
        return 0 if mode == "add" else 1
    if dtype == torch.bool:
        return mode == "min"
    if dtype.is_floating_point:
        return float("-inf") if mode == "max" else float("inf")
    return torch.iinfo(dtype).min if mode == "max" else torch.iinfo(dtype).max


# ---------------------------------------------------------------- index_put


@lowering("index_put")
def index_put(
    b: Builder,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
) -> TensorValue:
    return _index_put(b, x, indices, values, accumulate, checked=True)


@lowering("_unsafe_index_put")
def unsafe_index_put(
    b: Builder,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
) -> TensorValue:
    return _index_put(b, x, indices, values, accumulate, checked=False)


def _index_put(
    b: Builder,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool,
    checked: bool,
) -> TensorValue:
    if _is_one_mask(x, indices) and product(values.shape) == 1:
        return _masked_put(b, x, indices[0], values, accumulate)
    where = advanced(x, indices)
    if where is None:
        return NotImplemented
    dtype = compute_dtype(x.dtype) if accumulate else x.dtype

    def coords(index: tuple[Index, ...]) -> list[Index]:
        return where.coords(index, checked=checked)

    def value(index: tuple[Index, ...]) -> Expr:
        return cast(values.load_broadcast(index), dtype)

    return _scattered(b, x, where.shape, coords, value, "add" if accumulate else "set")


def _is_one_mask(x: TensorValue, indices: Sequence[TensorValue | None]) -> bool:
    given = [i for i in indices if i is not None]
    return len(given) == 1 and indices[0] is given[0] and given[0].dtype == torch.bool and bool(given[0].shape)


def _masked_put(b: Builder, x: TensorValue, mask: TensorValue, value: TensorValue, accumulate: bool) -> TensorValue:
    """One value where a mask over the leading dimensions holds."""
    dtype = compute_dtype(x.dtype)
    if tuple(mask.shape) != tuple(x.shape[: len(mask.shape)]):
        raise UnsupportedError(f"a mask of shape {mask.shape} for a tensor of shape {x.shape}")

    def body(index: tuple[Index, ...]) -> Expr:
        old = cast(x.load(index), dtype)
        new = cast(value.load([0] * len(value.shape)), dtype)
        if accumulate:
            new = call("logical_or" if dtype == torch.bool else "add", old, new)
        return call("where", mask.load(index[: len(mask.shape)]), new, old)

    return b.define(b.result, body)


# ---------------------------------------------------------------- embedding


@lowering("embedding_dense_backward")
def embedding_backward(
    b: Builder, grad: TensorValue, indices: TensorValue, rows: Size, padding: int, scale_by_frequency: bool
) -> TensorValue:
    """Rows of the gradient added up by index; the row of the padding gets nothing."""
    if scale_by_frequency:
        return NotImplemented
    dtype = compute_dtype(grad.dtype)
    wide = b.result.to(dtype)
    zeros = b.define(wide, lambda index: constant(0, dtype), f"{b.node.name}_zeros")
    loops = tuple(grad.shape)

    def coords(index: tuple[Index, ...]) -> list[Index]:
        return [taken(indices.load(index[:-1]), rows, wraps=False), index[-1]]

    def value(index: tuple[Index, ...]) -> Expr:
        return cast(grad.load(index), dtype)

    def wanted(index: tuple[Index, ...]) -> Expr:
        return call("ne", cast(indices.load(index[:-1]), torch.int64), constant(padding, torch.int64))

    result = b.scatter(wide, zeros, loops, coords, value, "add", wanted if padding >= 0 else None)
    return result if dtype == b.result.dtype else b.define(b.result, result.load)


# ---------------------------------------------------------------- views written to


@lowering("diagonal_scatter")
def diagonal_scatter(
    b: Builder, x: TensorValue, source: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    dim1, dim2 = dim1 % len(x.shape), dim2 % len(x.shape)
    down, right = max(0, -offset), max(0, offset)

    def coords(index: tuple[Index, ...]) -> list[Index]:
        rest = iter(index[:-1])
        moved = {dim1: index[-1] + down, dim2: index[-1] + right}
        return [moved[d] if d in moved else next(rest) for d in range(len(x.shape))]

    return b.scatter(b.result, x, source.shape, coords, lambda index: cast(source.load(index), x.dtype), "set")
