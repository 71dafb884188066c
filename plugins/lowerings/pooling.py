"""Pooling: reductions over the window of each result element, or over the windows that an input element lies in.

``_Windows`` says, for every pooled dimension, which input positions belong to a result position (forward) and which
result positions an input position belongs to (backward).  Backward passes gather instead of scattering, so that
they are deterministic and need no zeroed memory.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.graph.dtypes import compute_dtype
from turret.hooks.devices import uses_host_kernels
from turret.ir import Expr, Index, Size, Var, call, cast, constant, flatten, index_value, reduce
from turret.ir.expr import from_zero
from turret.ir.index import divide_exactly, provably_less, provably_nonnegative
from turret.ir.lowering import Builder, TensorValue
from turret.plugins.lowerings.indexing import all_of, within
from turret.plugins.lowerings.registry import lowering

_NOWHERE = constant(2**62, torch.int64)
"""Number of an element outside of the input: later than any inside."""


class _Windows(abc.ABC):
    """Windows along one dimension of ``extent`` input and ``count`` result positions."""

    extent: Size
    count: Size

    @property
    @abc.abstractmethod
    def widest(self) -> Size:
        """Most input positions of a window."""

    @property
    @abc.abstractmethod
    def most(self) -> Size:
        """Most windows that one input position lies in."""

    @abc.abstractmethod
    def member(self, window: Index, number: Index) -> tuple[Index, Expr | None]:
        """Input position ``number`` of a window, and whether it is one (None: always)."""

    @abc.abstractmethod
    def covering(self, position: Index, number: Index) -> tuple[Index, Expr | None]:
        """Window ``number`` of those that an input position can lie in, and whether it does (None: always)."""

    @abc.abstractmethod
    def divisor(self, window: Index) -> Expr | int:
        """What a sum over the window is divided by, as an int64 expression or a number."""


@attrs.frozen
class _Strided(_Windows):
    """Windows of ``kernel`` positions, ``dilation`` apart, that begin every ``stride`` positions from ``-padding``."""

    extent: Size
    count: Size
    kernel: int
    stride: int
    padding: int
    dilation: int = 1
    counts_padding: bool = True

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    @property
    def tests_positions(self) -> bool:
        """Whether the input is narrower than a window, so that every position is tested for being in it.

        Models whose pooling is to cover any image have windows thousands of times as large as their input.
        """
        return isinstance(self.extent, int) and self.dilation == 1 and self.extent < self.kernel

    @property
    def tests_windows(self) -> bool:
        """Whether there are fewer windows than one position could lie in, so that every window is tested."""
        return isinstance(self.count, int) and self.count < -(-self.reach // self.stride)

    @property
    def widest(self) -> Size:
        return self.extent if self.tests_positions else self.kernel

    @property
    def most(self) -> Size:
        return self.count if self.tests_windows else -(-self.reach // self.stride)

    def member(self, window: Index, number: Index) -> tuple[Index, Expr | None]:
        start = window * self.stride - self.padding
        if self.tests_positions:
            return number, within(number - start, self.kernel)
        position = start + number * self.dilation
        return position, within(position, self.extent)

    def covering(self, position: Index, number: Index) -> tuple[Index, Expr | None]:
        shifted = position + self.padding
        if self.tests_windows:
            return number, within(shifted - number * self.stride, self.reach)
        window = shifted // self.stride - number
        offset = shifted - window * self.stride
        return window, all_of(within(window, self.count), within(offset, self.reach))

    def divisor(self, window: Index) -> Expr | int:
        start = window * self.stride - self.padding
        end = start + self.kernel
        low, high = (self.padding, self.padding) if self.counts_padding else (0, 0)
        first, last = _at_least(start, -low), _at_most(end, self.extent + high)
        if isinstance(first, Index) and isinstance(last, Index):
            return _as_number(last - first)
        return call("sub", _as_expr(last), _as_expr(first))


@attrs.frozen
class _Adaptive(_Windows):
    """Windows that share an extent out among ``count`` results: ``floor(w*n/c)`` to ``ceil((w+1)*n/c)``.

    Sizes are ints, or the count divides the extent.
    """

    extent: Size
    count: Size

    @classmethod
    def of(cls, extent: Size, count: Size) -> _Adaptive | None:
        """None where sizes are not known well enough."""
        known = isinstance(extent, int) and isinstance(count, int)
        return cls(extent, count) if known or divide_exactly(extent, count) is not None else None

    @property
    def even(self) -> Size | None:
        """The width of every window where they do not overlap."""
        return divide_exactly(self.extent, self.count)

    @property
    def widest(self) -> Size:
        if self.even is not None:
            return self.even
        return max(-(-(w + 1) * self.extent // self.count) - w * self.extent // self.count for w in range(self.count))

    @property
    def most(self) -> int:
        if self.even is not None:
            return 1
        n, c = self.extent, self.count
        return max(-(-(p + 1) * c // n) - p * c // n for p in range(n))

    def member(self, window: Index, number: Index) -> tuple[Index, Expr | None]:
        position = self._first(window) + number
        if self.even is not None:
            return position, None
        return position, call("lt", index_value(position), index_value(self._end(window)))

    def covering(self, position: Index, number: Index) -> tuple[Index, Expr | None]:
        if self.even is not None:
            return position // self.even, None
        window = position * self.count // self.extent + number
        begun = call("le", index_value(self._first(window)), index_value(position))
        return window, all_of(within(window, self.count), begun)

    def divisor(self, window: Index) -> Expr | int:
        return _as_number(self._end(window) - self._first(window)) if self.even is None else self.even

    def _first(self, window: Index) -> Index:
        return window * self.even if self.even is not None else window * self.extent // self.count

    def _end(self, window: Index) -> Index:
        return ((window + 1) * self.extent + self.count - 1) // self.count


def _at_least(index: Index, bound: int) -> Index | Expr:
    low, _ = index.bounds()
    if low is not None and provably_nonnegative(low - bound):
        return index
    return call("max", index_value(index), constant(bound, torch.int64))


def _at_most(index: Index, bound: Size) -> Index | Expr:
    _, high = index.bounds()
    if high is not None and provably_less(high, bound + 1):
        return index
    return call("min", index_value(index), index_value(Index.constant(bound)))


def _as_expr(value: Index | Expr) -> Expr:
    return index_value(value) if isinstance(value, Index) else value


def _as_number(index: Index) -> Expr | int:
    return index.const if index.is_constant and isinstance(index.const, int) else index_value(index)


# ---------------------------------------------------------------- over all pooled dimensions


@attrs.frozen
class _Pool:
    """The windows of all pooled dimensions (the last ones)."""

    windows: tuple[_Windows, ...]

    @property
    def rank(self) -> int:
        return len(self.windows)

    def members(self, index: Sequence[Index]) -> tuple[tuple[Var, ...], list[Index], Expr | None]:
        """Row variables, and the input position they stand for in the window of a result element."""
        variables = tuple(Var(f"r{k}", w.widest) for k, w in enumerate(self.windows))
        return self._positions(index, variables, lambda w, i, v: w.member(i, v))

    def coverings(self, index: Sequence[Index]) -> tuple[tuple[Var, ...], list[Index], Expr | None]:
        """Row variables, and the result position they stand for among the windows of an input element."""
        variables = tuple(Var(f"r{k}", w.most) for k, w in enumerate(self.windows))
        return self._positions(index, variables, lambda w, i, v: w.covering(i, v))

    def _positions(self, index: Sequence[Index], variables: tuple[Var, ...], find: Callable) -> Any:
        outer, pooled = index[: -self.rank], index[-self.rank :]
        found = [find(w, i, v.index) for w, i, v in zip(self.windows, pooled, variables, strict=True)]
        return variables, [*outer, *(p for p, _ in found)], all_of(*(c for _, c in found))

    def number(self, position: Sequence[Index]) -> Expr:
        """Row-major number of an input position in its plane."""
        return index_value(flatten(position[-self.rank :], [w.extent for w in self.windows]))

    def divisor(self, index: Sequence[Index], dtype: torch.dtype) -> Expr:
        """Product of the dimensions' divisors."""
        known, rest = 1, None
        for window, position in zip(self.windows, index[-self.rank :], strict=True):
            factor = window.divisor(position)
            if isinstance(factor, int):
                known *= factor
            else:
                factor = factor if isinstance(factor, Expr) else index_value(Index.constant(factor))
                rest = factor if rest is None else call("mul", rest, factor)
        if rest is None:
            return constant(known, dtype)
        return cast(call("mul", rest, constant(known, torch.int64)), dtype)


def _guarded(condition: Expr | None, value: Expr, otherwise: Expr) -> Expr:
    return value if condition is None else call("masked", condition, value, otherwise)


def _chosen(condition: Expr | None, value: Expr, otherwise: Expr) -> Expr:
    return value if condition is None else call("where", condition, value, otherwise)


def _spread(value: int | Sequence[int], rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _strided_pool(
    x: Sequence[Size],
    result: Sequence[Size],
    rank: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
    counts_padding: bool = True,
) -> _Pool:
    kernel = _spread(kernel, rank)
    settings = zip(
        x[-rank:],
        result[-rank:],
        kernel,
        _spread(stride, rank) if stride else kernel,
        _spread(padding, rank),
        _spread(dilation, rank),
        strict=True,
    )
    return _Pool(tuple(_Strided(n, count, k, s, p, d, counts_padding) for n, count, k, s, p, d in settings))


def _adaptive_pool(x: Sequence[Size], result: Sequence[Size], rank: int) -> _Pool | None:
    windows = [w for n, c in zip(x[-rank:], result[-rank:], strict=True) if (w := _Adaptive.of(n, c)) is not None]
    return None if len(windows) < rank or 0 in x or 0 in result else _Pool(tuple(windows))


OVERLAPPING = "windows that overlap: eager's kernel adds once where a gather tests each window"
EMPTY = "windows that may skip the whole input: eager's kernel decides on the maximum of nothing"
CHANNELS_LAST = "channels-last pooling: eager's kernel runs along the channels"


def _overlaps_on_cpu(grad: TensorValue, pool: _Pool) -> bool:
    return uses_host_kernels(grad.device) and any(w.most != 1 for w in pool.windows)


def _may_see_nothing(pool: _Pool) -> bool:
    """Whether positions of a window may lie on both sides of the input and nowhere in it."""
    strided = (w for w in pool.windows if isinstance(w, _Strided))
    return any(w.padding and not provably_less(w.dilation - 1, w.extent) for w in strided)


def _channels_last_on_cpu(x: TensorValue) -> bool:
    layout = x.strides()
    return uses_host_kernels(x.device) and len(x.shape) > 3 and layout is not None and layout[0][1] == 1 != x.shape[1]


# ---------------------------------------------------------------- maximum


def _lowest(dtype: torch.dtype) -> Expr:
    return constant(float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)


def _max_pool(b: Builder, x: TensorValue, pool: _Pool) -> tuple[TensorValue, TensorValue]:
    """The maximum of each window, and its number in the plane: the first of equal ones, the last NaN."""
    dtype = compute_dtype(x.dtype)

    def element(index: Sequence[Index]) -> tuple[tuple[Var, ...], Expr, Expr]:
        variables, position, inside = pool.members(index)
        value = _guarded(inside, cast(x.load(position), dtype), _lowest(dtype))
        return variables, value, _chosen(inside, pool.number(position), _NOWHERE)

    def best(index: Sequence[Index]) -> Expr:
        variables, value, _ = element(index)
        return reduce("max", variables, value)

    def place(index: Sequence[Index]) -> Expr:
        variables, value, number = element(index)
        if not dtype.is_floating_point:
            return reduce("argmax", variables, value, number)
        # Numbers of NaNs count down below zero, so that the least of them is the last NaN.
        marked = call("where", call("isnan", value), call("bitwise_not", number), number)
        found = reduce("argmax", variables, value, marked)
        return call("where", call("lt", found, constant(0, torch.int64)), call("bitwise_not", found), found)

    return (
        b.define(b.result_part(0), best),
        b.define(b.result_part(1), place, f"{b.node.name}_indices"),
    )


def _max_pool_backward(b: Builder, grad: TensorValue, indices: TensorValue, pool: _Pool) -> TensorValue:
    """Each input element's gradients from the windows whose maximum it was."""
    if _overlaps_on_cpu(grad, pool):
        return b.fallback(OVERLAPPING)
    dtype = compute_dtype(grad.dtype)

    def body(index: Sequence[Index]) -> Expr:
        variables, position, inside = pool.coverings(index)
        zero = constant(0, dtype)
        hit = call("eq", indices.load(position), pool.number(index))
        value = call("where", hit, cast(grad.load(position), dtype), zero)
        return _summed(variables, _guarded(inside, value, zero))

    return b.define(b.result, body)


def _max_pool_lowering(rank: int) -> Callable[..., Any]:
    def lower(
        b: Builder,
        x: TensorValue,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        if _channels_last_on_cpu(x):
            return b.fallback(CHANNELS_LAST)
        pool = _strided_pool(x.shape, b.result_shape(0), rank, kernel, stride, padding, dilation)
        return b.fallback(EMPTY) if _may_see_nothing(pool) else _max_pool(b, x, pool)

    return lower


def _max_pool_backward_lowering(rank: int) -> Callable[..., Any]:
    def lower(
        b: Builder,
        grad: TensorValue,
        x: TensorValue,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        indices: TensorValue,
    ) -> TensorValue:
        pool = _strided_pool(x.shape, grad.shape, rank, kernel, stride, padding, dilation)
        return b.fallback(EMPTY) if _may_see_nothing(pool) else _max_pool_backward(b, grad, indices, pool)

    return lower


def _adaptive_max_lowering(rank: int) -> Callable[..., Any]:
    def lower(b: Builder, x: TensorValue, size: Sequence[Size]) -> Any:
        pool = _adaptive_pool(x.shape, b.result_shape(0), rank)
        return NotImplemented if pool is None else _max_pool(b, x, pool)

    return lower


def _adaptive_max_backward_lowering(rank: int) -> Callable[..., Any]:
    def lower(b: Builder, grad: TensorValue, x: TensorValue, indices: TensorValue) -> TensorValue:
        pool = _adaptive_pool(x.shape, grad.shape, rank)
        return NotImplemented if pool is None else _max_pool_backward(b, grad, indices, pool)

    return lower


# ---------------------------------------------------------------- average


def _summed(variables: Sequence[Var], value: Expr) -> Expr:
    """The sum over a window, which starts at +0: that shows for one of a single -0."""
    total = reduce("sum", variables, value)
    return from_zero(total) if all(v.extent == 1 for v in variables) else total


def _average_pool(b: Builder, x: TensorValue, pool: _Pool, divisor: int | None) -> TensorValue:
    dtype = compute_dtype(x.dtype)
    if not dtype.is_floating_point:
        return NotImplemented

    def body(index: Sequence[Index]) -> Expr:
        variables, position, inside = pool.members(index)
        total = _summed(variables, _guarded(inside, cast(x.load(position), dtype), constant(0, dtype)))
        return call("div", total, constant(divisor, dtype) if divisor else pool.divisor(index, dtype))

    return b.define(b.result, body)


def _average_pool_backward(b: Builder, grad: TensorValue, pool: _Pool, divisor: int | None) -> TensorValue:
    dtype = compute_dtype(grad.dtype)
    if not dtype.is_floating_point:
        return NotImplemented
    if _overlaps_on_cpu(grad, pool):
        return b.fallback(OVERLAPPING)

    def body(index: Sequence[Index]) -> Expr:
        variables, position, inside = pool.coverings(index)
        share = constant(divisor, dtype) if divisor else pool.divisor(position, dtype)
        value = cast(grad.load(position), dtype)
        value = _guarded(inside, call("div", value, share), constant(0, dtype))
        return _summed(variables, value)

    return b.define(b.result, body)


def _average_lowering(rank: int) -> Callable[..., Any]:
    def lower(
        b: Builder,
        x: TensorValue,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorValue:
        shape = b.result_shape()
        pool = _strided_pool(x.shape, shape, rank, kernel, stride, padding, counts_padding=count_include_pad)
        return _average_pool(b, x, pool, divisor_override)

    return lower


def _average_backward_lowering(rank: int) -> Callable[..., Any]:
    def lower(
        b: Builder,
        grad: TensorValue,
        x: TensorValue,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> TensorValue:
        pool = _strided_pool(x.shape, grad.shape, rank, kernel, stride, padding, counts_padding=count_include_pad)
        return _average_pool_backward(b, grad, pool, divisor_override)

    return lower


def _adaptive_average_lowering(rank: int) -> Callable[..., Any]:
    def lower(b: Builder, x: TensorValue, size: Sequence[Size]) -> TensorValue:
        pool = _adaptive_pool(x.shape, b.result_shape(), rank)
        return NotImplemented if pool is None else _average_pool(b, x, pool, None)

    return lower


def _adaptive_average_backward_lowering(rank: int) -> Callable[..., Any]:
    def lower(b: Builder, grad: TensorValue, x: TensorValue) -> TensorValue:
        pool = _adaptive_pool(x.shape, grad.shape, rank)
        return NotImplemented if pool is None else _average_pool_backward(b, grad, pool, None)

    return lower


for _rank in (2, 3):
    lowering(f"max_pool{_rank}d_with_indices")(_max_pool_lowering(_rank))
    lowering(f"max_pool{_rank}d_with_indices_backward")(_max_pool_backward_lowering(_rank))
    lowering(f"adaptive_max_pool{_rank}d")(_adaptive_max_lowering(_rank))
    lowering(f"adaptive_max_pool{_rank}d_backward")(_adaptive_max_backward_lowering(_rank))
    lowering(f"avg_pool{_rank}d")(_average_lowering(_rank))
    lowering(f"avg_pool{_rank}d_backward")(_average_backward_lowering(_rank))
    lowering(f"_adaptive_avg_pool{_rank}d")(_adaptive_average_lowering(_rank))
    lowering(f"_adaptive_avg_pool{_rank}d_backward")(_adaptive_average_backward_lowering(_rank))
