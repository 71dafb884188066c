"""Views: no work, only another way to address the same elements."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from turret.ir import Index, Size, flatten, product, unflatten
from turret.ir.index import divide_exactly
from turret.ir.lowering import Builder, TensorValue
from turret.ir.program import StridedView
from turret.plugins.lowerings.registry import lowering


@lowering("alias", "detach", "lift_fresh")
def alias(b: Builder, x: TensorValue) -> TensorValue:
    return x


@lowering("view", "_unsafe_view", "reshape")
def view(b: Builder, x: TensorValue, shape: Sequence[Size]) -> TensorValue:
    target = b.result_shape()
    return reshape(x, target)


def reshape(x: TensorValue, target: tuple[Size, ...]) -> TensorValue:
    """``x`` in another shape, dimension group by dimension group, so that few divisions appear."""
    if 0 in target:
        return x.view(target, lambda index: [Index.constant(0)] * len(x.shape))
    groups = _match(x.shape, target)

    def coords(index: tuple[Index, ...]) -> list[Index]:
        result: list[Index] = []
        for old, new in groups:
            extents = tuple(x.shape[d] for d in old)
            linear = flatten([index[d] for d in new], [target[d] for d in new])
            result += unflatten(linear, extents)
        return result

    return x.view(target, coords)


def _match(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Shortest runs of dimensions of equal product, in order."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, c = [], []
        left: Size = 1
        right: Size = 1
        if i < len(old):
            a, left, i = [i], old[i], i + 1
        if j < len(new):
            c, right, j = [j], new[j], j + 1
        while left != right:
            grow_left = i < len(old) and (j >= len(new) or _smaller(left, right))
            if grow_left:
                left, i = product((left, old[i])), i + 1
                a.append(i - 1)
            elif j < len(new):
                right, j = product((right, new[j])), j + 1
                c.append(j - 1)
            else:
                return [(list(range(len(old))), list(range(len(new))))]
        groups.append((a, c))
    return groups


def _smaller(left: Size, right: Size) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left < right

    return left == 1 or divide_exactly(right, left) is not None


@lowering("permute")
def permute(b: Builder, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    order = [d % len(x.shape) for d in dims]

    def coords(index: tuple[Index, ...]) -> list[Index]:
        place = {d: index[k] for k, d in enumerate(order)}
        return [place[d] for d in range(len(order))]

    return x.view([x.shape[d] for d in order], coords)


@lowering("t", "numpy_T")
def transpose_matrix(b: Builder, x: TensorValue) -> TensorValue:
    return permute(b, x, list(reversed(range(len(x.shape)))))


@lowering("transpose.int")
def transpose(b: Builder, x: TensorValue, first: int, second: int) -> TensorValue:
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return permute(b, x, order)


@lowering("unsqueeze")
def unsqueeze(b: Builder, x: TensorValue, dim: int) -> TensorValue:
    dim %= len(x.shape) + 1
    return x.view((*x.shape[:dim], 1, *x.shape[dim:]), lambda index: [*index[:dim], *index[dim + 1 :]])


@lowering("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(b: Builder, x: TensorValue, dims: int | Sequence[int] | None = None) -> TensorValue:
    wanted = range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % max(1, len(x.shape)) for d in wanted}
    kept = [d for d in range(len(x.shape)) if d not in gone or x.shape[d] != 1]

    def coords(index: tuple[Index, ...]) -> list[Index | int]:
        place = dict(zip(kept, index, strict=True))
        return [place.get(d, 0) for d in range(len(x.shape))]

    return x.view([x.shape[d] for d in kept], coords)


@lowering("expand")
def expand(b: Builder, x: TensorValue, shape: Sequence[Size], implicit: bool = False) -> TensorValue:
    target = b.result_shape()
    extra = len(target) - len(x.shape)

    def coords(index: tuple[Index, ...]) -> list[Index | int]:
        return [0 if extent == 1 else i for i, extent in zip(index[extra:], x.shape, strict=True)]

    return x.view(target, coords)


@lowering("slice.Tensor")
def slice_tensor(
    b: Builder, x: TensorValue, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> TensorValue:
    dim %= len(x.shape)
    first = clamp_start(start, x.shape[dim])
    target = b.result_shape()
    return x.view(target, lambda index: [i * step + first if d == dim else i for d, i in enumerate(index)])


def clamp_start(start: Size | None, extent: Size) -> Size:
    """The first element of a slice: negative counts from the end, and both ends are kept."""
    if start is None:
        return 0
    if isinstance(start, int) and start < 0:
        start = start + extent
        return max(start, 0) if isinstance(start, int) else start
    if isinstance(start, int) and isinstance(extent, int):
        return min(start, extent)
    return start


@lowering("select.int")
def select(b: Builder, x: TensorValue, dim: int, position: Size) -> TensorValue:
    dim %= len(x.shape)
    if isinstance(position, int) and position < 0:
        position = position + x.shape[dim]
    target = b.result_shape()
    return x.view(target, lambda index: [*index[:dim], Index.constant(position), *index[dim:]])


@lowering("diagonal")
def diagonal(b: Builder, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    dim1, dim2 = dim1 % len(x.shape), dim2 % len(x.shape)
    down, right = max(0, -offset), max(0, offset)

    def coords(index: tuple[Index, ...]) -> list[Index]:
        rest = list(index[:-1])
        return [
            index[-1] + down if d == dim1 else index[-1] + right if d == dim2 else rest.pop(0)
            for d in range(len(x.shape))
        ]

    return x.view(b.result_shape(), coords)


@lowering("unfold")
def unfold(b: Builder, x: TensorValue, dim: int, window: int, step: int) -> TensorValue:
    if not x.shape:
        return x.view(b.result_shape(), lambda index: [])
    dim %= len(x.shape)

    def coords(index: tuple[Index, ...]) -> list[Index]:
        return [i * step + index[-1] if d == dim else i for d, i in enumerate(index[:-1])]

    return x.view(b.result_shape(), coords)


@lowering("turret.as_strided")
def as_strided(b: Builder, x: TensorValue, shape: Sequence[Size], stride: Sequence[Size], offset: Size) -> TensorValue:
    """A view of the memory that ``x`` lies in: of its base's, which has the layout that the trace saw."""
    layout = x.strides()
    if layout is None:
        return NotImplemented
    decl = b.declare(b.result)
    b.statements.append(StridedView(decl, x.base.name, offset + layout[1]))
    return TensorValue.of(decl)


def _moved_along(dim: int, first: Size, index: Sequence[Index]) -> list[Index]:
    return [i + first if d == dim else i for d, i in enumerate(index)]


def _with_constant(dim: int, number: int, index: Sequence[Index]) -> list[Index]:
    return [*index[:dim], Index.constant(number), *index[dim:]]


@lowering("split.Tensor", "split_with_sizes")
def split(b: Builder, x: TensorValue, sizes: Size | Sequence[Size], dim: int = 0) -> list[TensorValue]:
    dim %= len(x.shape)
    start: Size = 0
    parts = []
    for number in range(len(b.result)):
        target = b.result_shape(number)
        parts.append(x.view(target, functools.partial(_moved_along, dim, start)))
        start = start + target[dim]
    return parts


@lowering("unbind.int")
def unbind(b: Builder, x: TensorValue, dim: int = 0) -> list[TensorValue]:
    dim %= len(x.shape)
    target = (*x.shape[:dim], *x.shape[dim + 1 :])
    return [x.view(target, functools.partial(_with_constant, dim, k)) for k in range(len(b.result))]
