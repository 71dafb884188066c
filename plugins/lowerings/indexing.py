"""Elements taken by computed indices, and tensors put together from parts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from turret.ir import Expr, Index, Size, call, cast, check_index, constant, index_value, keep_checks, wrap_index
from turret.ir.index import product, provably_less, provably_nonnegative, size
from turret.ir.lowering import Builder, Number, TensorValue
from turret.plugins.lowerings.registry import lowering
from turret.plugins.lowerings.views import clamp_start

_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


def taken(
    position: Expr, extent: Size, *, wraps: bool, checked: bool = True, error: type[Exception] = IndexError
) -> Index:
    """A computed position along a dimension: negative counts from the end if ``wraps``, and it is checked.

    ``error`` is what eager raises where it is out of range.
    """
    if wraps:
        position = wrap_index(position, extent)
    return Index.of_value(check_index(position, extent, error) if checked else position)


def load_taken(x: TensorValue, where: Sequence[Index]) -> Expr:
    """The element of ``x`` at ``where``; a position that a dimension of size 1 has no use for is still checked."""
    return keep_checks(x.load(where), where)


@lowering("embedding")
def embedding(b: Builder, weight: TensorValue, indices: TensorValue, *_: Any, **__: Any) -> TensorValue:
    if _may_be_without_elements(weight.shape[1:]):
        return NotImplemented

    def body(index: tuple[Index, ...]) -> Expr:
        row = taken(indices.load(index[:-1]), weight.shape[0], wraps=False)
        return load_taken(weight, (row, index[-1]))

    return b.define(b.result, body)


@lowering("index_select")
def index_select(b: Builder, x: TensorValue, dim: int, indices: TensorValue) -> TensorValue:
    if not x.shape:
        return NotImplemented
    dim %= len(x.shape)
    if _may_be_without_elements((*x.shape[:dim], *x.shape[dim + 1 :])):
        return NotImplemented

    def body(index: tuple[Index, ...]) -> Expr:
        where = [index[dim]] if indices.shape else []
        chosen = taken(indices.load(where), x.shape[dim], wraps=False)
        return load_taken(x, [chosen if d == dim else i for d, i in enumerate(index)])

    return b.define(b.result, body)


def _may_be_without_elements(shape: Sequence[Size]) -> bool:
    """Whether rows of a shape may have no elements: eager checks their index all the same, loops over them do not."""
    return not all(provably_nonnegative(extent - 1) for extent in shape)


_ERRORS: dict[Any, type[Exception]] = {
    torch.ops.aten.nll_loss_forward.default: IndexError,
    torch.ops.aten.nll_loss2d_forward.default: IndexError,
    torch.ops.aten.binary_cross_entropy.default: RuntimeError,
}
"""What eager's kernels raise for ops that are decomposed into one that raises another error."""


def _error_of_origin(b: Builder, error: type[Exception]) -> type[Exception]:
    """What an index out of range raises in the op that the program calls; ``error`` if that is the op itself."""
    return _ERRORS.get(b.node.meta.get("original_aten"), error)


@lowering("gather")
def gather(b: Builder, x: TensorValue, dim: int, indices: TensorValue, sparse_grad: bool = False) -> TensorValue:
    if not x.shape or not indices.shape:
        return NotImplemented
    dim %= len(x.shape)
    error = _error_of_origin(b, RuntimeError)

    def body(index: tuple[Index, ...]) -> Expr:
        chosen = taken(indices.load(index), x.shape[dim], wraps=False, error=error)
        return load_taken(x, [chosen if d == dim else i for d, i in enumerate(index)])

    return b.define(b.result, body)


@lowering("index.Tensor")
def index_tensor(b: Builder, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    return _advanced(b, x, indices, checked=True)


@lowering("_unsafe_index.Tensor")
def unsafe_index(b: Builder, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    return _advanced(b, x, indices, checked=False)


@attrs.frozen
class Advanced:
    """Advanced indexing of ``x`` by integer tensors: the shape of the result, and where its elements come from.

    Index tensors broadcast together; where they are neighbours their dimensions take the place of those they
    index, else they come first.
    """

    x: TensorValue
    given: dict[int, TensorValue]
    shape: tuple[Size, ...]
    start: int
    rank: int

    def coords(self, index: Sequence[Index], *, checked: bool, error: type[Exception] = IndexError) -> list[Index]:
        """Coordinates in ``x`` of the element at ``index`` of the result."""
        chosen = index[self.start : self.start + self.rank]
        kept = iter([*index[: self.start], *index[self.start + self.rank :]])
        extents = self.x.shape
        found = {
            d: taken(i.load_broadcast(chosen), extents[d], wraps=True, checked=checked, error=error)
            for d, i in self.given.items()
        }
        return [found[d] if d in found else next(kept) for d in range(len(extents))]


def advanced(x: TensorValue, indices: Sequence[TensorValue | None]) -> Advanced | None:
    """How ``x[indices]`` finds its elements; None where that is not a matter of integer tensors alone."""
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if not given or any(i.dtype not in _INDEX_DTYPES for i in given.values()) or product(x.shape) == 0:
        return None
    places = list(given)
    shape = _broadcast([i.shape for i in given.values()])
    neighbours = places == list(range(places[0], places[0] + len(places)))
    start = places[0] if neighbours else 0
    rest = [extent for d, extent in enumerate(x.shape) if d not in given]
    return Advanced(x, given, (*rest[:start], *shape, *rest[start:]), start, len(shape))


def _broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    rank = max(map(len, shapes))
    columns = zip(*((*([1] * (rank - len(shape))), *shape) for shape in shapes), strict=True)
    return tuple(next((extent for extent in column if extent != 1), 1) for column in columns)


def _advanced(b: Builder, x: TensorValue, indices: Sequence[TensorValue | None], *, checked: bool) -> TensorValue:
    where = advanced(x, indices)
    if where is None:
        return NotImplemented
    error = _error_of_origin(b, IndexError)
    return b.define(b.result, lambda index: load_taken(x, where.coords(index, checked=checked, error=error)))


@lowering("flip")
def flip(b: Builder, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    turned = {d % len(x.shape) for d in dims} if x.shape else set()

    def body(index: tuple[Index, ...]) -> Expr:
        return x.load([x.shape[d] - 1 - i if d in turned else i for d, i in enumerate(index)])

    return b.define(b.result, body)


def _less(index: Index, bound: Size) -> Expr:
    """Whether an index is less than a size; true where that is known."""
    _, high = index.bounds()
    if high is not None and provably_less(high, bound):
        return constant(True, torch.bool)
    return call("lt", index_value(index), index_value(Index.constant(bound)))


def _at_least(index: Index, bound: Size) -> Expr:
    low, _ = index.bounds()
    if low is not None and provably_nonnegative(low - bound):
        return constant(True, torch.bool)
    return call("ge", index_value(index), index_value(Index.constant(bound)))


def within(index: Index, extent: Size) -> Expr | None:
    """Whether ``0 <= index < extent``, where that is not known anyway (None)."""
    return all_of(*(c for c in (_at_least(index, 0), _less(index, extent)) if c.op != "const"))


def all_of(*conditions: Expr | None) -> Expr | None:
    """The conjunction of what is not None; None for nothing."""
    wanted = [c for c in conditions if c is not None]
    return functools.reduce(lambda a, c: call("logical_and", a, c), wanted) if wanted else None


@lowering("cat")
def cat(b: Builder, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    parts = [t for t in tensors if not (len(t.shape) == 1 and t.shape[0] == 0)]
    if len(parts) > MOST_PARTS or not parts:
        return NotImplemented
    dtype = b.result.dtype
    dim %= len(parts[0].shape)
    ends: list[Size] = []
    for tensor in parts:
        ends.append(size(tensor.shape[dim] + (ends[-1] if ends else 0)))

    def body(index: tuple[Index, ...]) -> Expr:
        zero = constant(0, dtype)
        result = zero
        for number in reversed(range(len(parts))):
            start = ends[number - 1] if number else 0
            value = cast(parts[number].load([i - start if d == dim else i for d, i in enumerate(index)]), dtype)
            within = _less(index[dim], ends[number])
            if number:
                within = call("logical_and", within, _at_least(index[dim], start))
            value = call("masked", within, value, zero)
            last = number == len(parts) - 1
            result = value if last else call("where", _less(index[dim], ends[number]), value, result)
        return result

    return b.define(b.result, body)


MOST_PARTS = 4
"""A cat of more parts than this runs as ATen's, which copies part by part; each part costs every element a test."""


@lowering("constant_pad_nd")
def constant_pad(b: Builder, x: TensorValue, pad: Sequence[Size], value: Number = 0) -> TensorValue:
    dtype = b.result.dtype
    rank = len(x.shape)
    before = {rank - 1 - k: pad[2 * k] for k in range(len(pad) // 2)}
    after = {rank - 1 - k: pad[2 * k + 1] for k in range(len(pad) // 2)}

    def body(index: tuple[Index, ...]) -> Expr:
        inside = [i - before.get(d, 0) for d, i in enumerate(index)]
        condition = constant(True, torch.bool)
        for d, position in enumerate(inside):
            if before.get(d, 0) != 0:
                condition = call("logical_and", condition, _at_least(position, 0))
            if after.get(d, 0) != 0:
                condition = call("logical_and", condition, _less(position, x.shape[d]))
        return call("masked", condition, x.load(inside), b.number(value, dtype))

    return b.define(b.result, body)


def _mirrored(b: Builder, *_: Any) -> Any:
    return b.fallback("eager's kernel copies rows where loops compute an index for every element")


for _rank in (1, 2, 3):
    lowering(f"reflection_pad{_rank}d", f"reflection_pad{_rank}d_backward", f"replication_pad{_rank}d")(_mirrored)


@lowering("slice_scatter")
def slice_scatter(
    b: Builder,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> TensorValue:
    dim %= len(x.shape)
    dtype = b.result.dtype
    first = clamp_start(start, x.shape[dim])
    count = source.shape[dim]

    def body(index: tuple[Index, ...]) -> Expr:
        offset = index[dim] - first
        place = offset // step
        inside = call("logical_and", _at_least(offset, 0), _less(place, count))
        if step != 1:
            whole = call("eq", index_value(offset % step), constant(0, torch.int64))
            inside = call("logical_and", inside, whole)
        new = cast(source.load([place if d == dim else i for d, i in enumerate(index)]), dtype)
        new = call("masked", inside, new, constant(0, dtype))
        return call("where", inside, new, x.load(index))

    return b.define(b.result, body)


@lowering("select_scatter")
def select_scatter(b: Builder, x: TensorValue, source: TensorValue, dim: int, position: Size) -> TensorValue:
    dim %= len(x.shape)
    dtype = b.result.dtype
    if isinstance(position, int) and position < 0:
        position = position + x.shape[dim]

    def body(index: tuple[Index, ...]) -> Expr:
        here = call("eq", index_value(index[dim]), index_value(Index.constant(position)))
        rest = [*index[:dim], *index[dim + 1 :]]
        return call("where", here, b.operand(source, rest, dtype), x.load(index))

    return b.define(b.result, body)
