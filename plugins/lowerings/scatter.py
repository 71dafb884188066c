"""Writes to computed positions: each op is a copy of a tensor and a ``Scatter`` on top of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from turret.errors import UnsupportedError
from turret.graph.dtypes import compute_dtype
from turret.ir import OPS, Expr, Index, Size, call, cast, constant, keep_checks
from turret.ir.index import product
from turret.ir.lowering import Builder, Number, TensorValue
from turret.ir.program import ScatterMode
from turret.plugins.lowerings.indexing import advanced, taken
from turret.plugins.lowerings.registry import lowering

Source: TypeAlias = TensorValue | Number
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
        of_bools: dict[ScatterMode, ScatterMode] = {"add": "max", "mul": "min"}
        mode = of_bools.get(mode, mode)
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
        return [self._chosen(index) if d == self.dim else i for d, i in enumerate(index)] if self.x.shape else []

    def value(self, index: tuple[Index, ...], value: Expr) -> Expr:
        """What is written: ``value``, after a check of the position where a tensor without dimensions has none."""
        return value if self.x.shape else keep_checks(value, (self._chosen(index),))

    def _chosen(self, index: tuple[Index, ...]) -> Index:
        extent = self.x.shape[self.dim] if self.x.shape else 1
        return taken(self.read(self.indices, index), extent, wraps=False, error=RuntimeError)

    def read(self, tensor: TensorValue, index: tuple[Index, ...]) -> Expr:
        return tensor.load(index if tensor.shape else ())


def _fits(x: TensorValue, indices: TensorValue) -> bool:
    """Whether loops can do a scatter: what is written to has elements, and one where it has no dimensions."""
    if product(x.shape) == 0 or len(indices.shape) > max(1, len(x.shape)):
        return False
    return bool(x.shape) or product(indices.shape) == 1


def _scatter(
    b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: Source, mode: ScatterMode, base: Any = None
) -> TensorValue:
    if not _fits(x, indices):
        return NotImplemented
    along = _Along(x, dim, indices)
    dtype = x.dtype if mode == "set" else compute_dtype(x.dtype)

    def value(index: tuple[Index, ...]) -> Expr:
        element = along.read(source, index) if isinstance(source, TensorValue) else b.number(source, x.dtype)
        return along.value(index, cast(element, dtype))

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
    if not _fits(x, indices):
        return NotImplemented
    along = _Along(x, dim, indices)
    flags = b.result.to(torch.bool)
    clear = b.define(flags, lambda index: constant(False, torch.bool), f"{b.node.name}_none")
    hit = b.scatter(flags, clear, along.loops, along.coords, lambda index: constant(True, torch.bool), "set")
    neutral = OPS[_MODES[reduce]].neutral
    assert neutral is not None
    start = b.number(neutral(x.dtype), x.dtype)
    base = b.define(
        b.result, lambda index: call("where", hit.load(index), start, x.load(index)), f"{b.node.name}_start"
    )
    return _scatter(b, x, dim, indices, source, _MODES[reduce], base)


# ---------------------------------------------------------------- slices by index


class _Slices:
    """The loops of a write of slices along a dimension, each to the position that an index names."""

    def __init__(self, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue) -> None:
        self.x, self.indices, self.source = x, indices, source
        self.dim = dim % max(1, len(x.shape))
        rest = [*x.shape[: self.dim], product(indices.shape), *x.shape[self.dim + 1 :]]
        self.loops = tuple(rest) if x.shape else (product(indices.shape),)
        # eager's index_add names a slice by select, unless slices are single elements
        self.add_error = RuntimeError if len(x.shape) > 1 else IndexError

    def chosen(self, index: tuple[Index, ...], error: type[Exception]) -> Index:
        extent = self.x.shape[self.dim] if self.x.shape else 1
        position = self.indices.load((index[self.dim],) if self.indices.shape else ())
        return taken(position, extent, wraps=False, error=error)

    def coords(self, index: tuple[Index, ...], error: type[Exception]) -> list[Index]:
        return [self.chosen(index, error) if d == self.dim else i for d, i in enumerate(index)] if self.x.shape else []

    def element(self, index: tuple[Index, ...], error: type[Exception]) -> Expr:
        """What the source has for a point of the loops."""
        value = self.source.load(index if self.source.shape else ())
        return value if self.x.shape else keep_checks(value, (self.chosen(index, error),))


@lowering("index_add")
def index_add(
    b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue, *, alpha: Number = 1
) -> TensorValue:
    """A symbol does not become an integer or a bool as a number does."""
    slices, dtype = _Slices(x, dim, indices, source), compute_dtype(x.dtype)
    error = slices.add_error
    if product(x.shape) == 0 or (not isinstance(alpha, int | float) and not dtype.is_floating_point):
        return NotImplemented

    def value(index: tuple[Index, ...]) -> Expr:
        element = cast(slices.element(index, error), dtype)
        if isinstance(alpha, int) and alpha == 1:
            return element
        scale = b.number(alpha, dtype)
        return call("logical_and" if dtype == torch.bool else "mul", element, scale)

    return _scattered(b, x, slices.loops, lambda index: slices.coords(index, error), value, "add")


@lowering("index_copy")
def index_copy(b: Builder, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue) -> TensorValue:
    if product(x.shape) == 0:
        return NotImplemented
    slices = _Slices(x, dim, indices, source)

    def value(index: tuple[Index, ...]) -> Expr:
        return slices.element(index, IndexError)

    return _scattered(b, x, slices.loops, lambda index: slices.coords(index, IndexError), value, "set")


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
    first = indices[0] if indices else None
    if first is not None and _is_one_mask(x, indices) and product(values.shape) == 1:
        return _masked_put(b, x, first, values, accumulate)
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
