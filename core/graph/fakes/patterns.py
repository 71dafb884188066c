"""What ops give for tensors of one pattern of sizes, remembered for all tensors of that pattern.

The blocks of a model differ in their sizes and hardly in anything else.  For many ops sizes matter through their
pattern alone: which of them are equal, which are 1, and in what order dimensions lie in memory.  What such an op gives
for one call says what it gives for every call of the pattern: each extent of a result is 1 or one of the operands'.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.graph.fakes.layouts import tensors_in
from turret.graph.fakes.strides import packed
from turret.torch_compat.dispatch import DisableTorchDispatch
from turret.torch_compat.fakes import FakeTensor

aten = torch.ops.aten

_ROW_MAJOR: tuple[int, ...] = ()
"""Instead of an order: dimensions lie in memory as they are written."""


class NoPattern(Exception):
    """A call that has a part of which only the value says what comes out: a symbolic size, known data, gaps."""


@attrs.frozen(slots=True)
class TensorPattern:
    """A tensor without gaps, up to its sizes.

    ``extents``: for each dimension the number of its size, 0 where that is 1.  ``order``: the dimensions that elements
    are laid out by, the slowest first (those left out are repeated), or ``_ROW_MAJOR``.
    """

    extents: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def layout(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides for sizes by their numbers."""
        shape = tuple([sizes[number] for number in self.extents])
        return shape, packed(shape, self.order or range(len(shape)))


@attrs.frozen(slots=True)
class _Result:
    """One result: a pattern, and whether it lies in the memory of the first argument."""

    tensor: TensorPattern
    views_first: bool


class _Sizes:
    """Numbers the sizes of one call, from 1 on, in the order in which they are met; number 0 is the size 1."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {1: 0}

    def pattern(self, tensor: FakeTensor) -> TensorPattern:
        """A tensor's; raises ``NoPattern`` for one that has none."""
        if tensor.constant is not None or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise NoPattern
        shape, strides = tensor.shape, tensor.stride()
        extents = tuple([self.number(extent) for extent in shape])
        return TensorPattern(extents, _order(shape, strides), tensor.dtype, tensor.fake_device)

    def number(self, extent: Any) -> int:
        """That of a size; raises ``NoPattern`` for symbols, and for 0, since nothing lies in memory then."""
        if type(extent) is not int or extent < 1:
            raise NoPattern
        return self.numbers.setdefault(extent, len(self.numbers))


def _order(shape: Sequence[int], strides: Sequence[Any]) -> tuple[int, ...]:
    """The order of dimensions in memory; raises ``NoPattern`` where there are gaps or overlaps, and for symbols."""
    if not all([type(stride) is int for stride in strides]):
        raise NoPattern
    if tuple(strides) == packed(shape, range(len(shape))):
        return _ROW_MAJOR
    kept = [d for d, stride in enumerate(strides) if stride]
    order = tuple(sorted(kept, key=lambda d: (-strides[d], d)))
    if not order or tuple(strides) != packed(shape, order):
        raise NoPattern
    return order


class PatternMemo:
    """Results of ops on fake tensors of one mode, by the pattern of their operands."""

    def __init__(self, fake_mode: Any) -> None:
        self._mode = weakref.ref(fake_mode)  # the mode holds the memo: as a cycle, both would outlive the compilation
        self._known: dict[tuple[Any, ...], Any] = {}

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PatternCall | None:
        """A call, for which results may be known or be noted; None for one that is not to be answered by patterns."""
        if func not in _SHAPED and not _is_elementwise(func):
            return None
        sizes = _Sizes()
        try:
            given = _resolved(args) if func in _RESHAPING else args
            operands = self._of(sizes, given, _SHAPED.get(func, -1))
            named = self._of(sizes, tuple(kwargs.items()), -1) if kwargs else ()
        except NoPattern:
            return None
        key = (func, operands, named, *_surroundings(args))
        if func in _RESHAPING and key not in self._known:  # nobody need be asked
            (source, _), shape = operands[0], operands[1]
            self._known[key] = _Result(TensorPattern(shape, _ROW_MAJOR, source.dtype, source.device), views_first=True)
        return PatternCall(self, key, sizes, args)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], ask: Callable[[], Any]) -> Any:
        """What an op gives, new for each call: as another call of the pattern did, or as ``ask`` says."""
        call = self.call(func, args, kwargs)
        if call is None:
            return ask()
        out = call.known()
        if out is NotImplemented:
            out = ask()
            call.note(out)
        return out

    def _of(self, sizes: _Sizes, values: Sequence[Any], shape_at: int) -> tuple[Any, ...]:
        """The pattern of arguments, of which the one at ``shape_at`` is a shape."""
        return tuple([self._part(sizes, v, n == shape_at) for n, v in enumerate(values)])

    def _part(self, sizes: _Sizes, value: Any, is_shape: bool) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            if value.fake_mode is not self._mode():
                raise NoPattern
            return sizes.pattern(value), value.requires_grad
        if kind is int and is_shape:
            return sizes.number(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, (tuple, list)):
            return tuple([self._part(sizes, v, is_shape) for v in value])
        raise NoPattern


class PatternCall:
    """One call whose operands have patterns."""

    __slots__ = ("_args", "_key", "_memo", "_sizes")

    def __init__(self, memo: PatternMemo, key: tuple[Any, ...], sizes: _Sizes, args: Sequence[Any]) -> None:
        self._memo, self._key, self._sizes, self._args = memo, key, sizes, args

    def known(self) -> Any:
        """New results, as another call of the pattern gave them; ``NotImplemented`` where none is known."""
        found = self._memo._known.get(self._key)
        if found is None or found is _UNLIKE:
            return NotImplemented
        sizes = tuple(self._sizes.numbers)
        if type(found) is _Result:
            return self._made(found, sizes)
        kind, parts = found
        return kind([self._made(part, sizes) if type(part) is _Result else part for part in parts])

    def note(self, out: Any) -> None:
        """Remember what the call gave, where that is all in its pattern."""
        if self._key in self._memo._known:
            return
        try:
            if type(out) in (tuple, list):
                noted: Any = (type(out), [self._result(v) for v in out])
                memories = [v.untyped_storage()._cdata for v in out if v is not None]
                if len(set(memories)) < len(memories):
                    raise NoPattern
            else:
                noted = self._result(out)
        except NoPattern:
            noted = _UNLIKE
        self._memo._known[self._key] = noted

    def _result(self, value: Any) -> _Result | None:
        if value is None:
            return None
        if type(value) is not FakeTensor or value.requires_grad or any(value is v for v in tensors_in(self._args)):
            raise NoPattern
        met = len(self._sizes.numbers)
        pattern = self._sizes.pattern(value)
        if len(self._sizes.numbers) > met:  # a size that no operand has
            raise NoPattern
        first = self._args[0]
        memory = value.untyped_storage()._cdata
        views_first = type(first) is FakeTensor and first.untyped_storage()._cdata == memory
        offset = first.storage_offset() if views_first else 0
        others = [t for t in tensors_in(self._args) if t is not first]
        if value.storage_offset() != offset or any(t.untyped_storage()._cdata == memory for t in others):
            raise NoPattern
        return _Result(pattern, views_first)

    def _made(self, result: _Result, sizes: tuple[int, ...]) -> FakeTensor:
        """A tensor of a result's pattern, below all dispatch, as a kernel makes it."""
        tensor = result.tensor
        shape, strides = tensor.layout(sizes)
        first = self._args[0] if result.views_first else None
        guard = DisableTorchDispatch()
        try:
            if first is None:
                meta = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
            else:
                # A view is an inference tensor where its base is one, whatever the mode.
                with torch.inference_mode(first.is_inference()):
                    meta = torch.empty(0, dtype=tensor.dtype, device="meta")
                    meta.set_(first.untyped_storage(), first.storage_offset(), shape, strides)
        finally:
            del guard
        return FakeTensor(self._memo._mode(), meta, tensor.device)


_UNLIKE = object()
"""Instead of results: they are not in the pattern of their operands."""

_PLAIN = frozenset(
    (int, float, bool, str, complex, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device)
)

_SHAPED: dict[Any, int] = {
    **dict.fromkeys(
        (
            aten.mm.default,
            aten.addmm.default,
            aten.bmm.default,
            aten.baddbmm.default,
            aten.t.default,
            aten.transpose.int,
            aten.permute.default,
            aten.unsqueeze.default,
            aten.detach.default,
            aten.sum.dim_IntList,
            aten.sum.default,
            aten.mean.dim,
            aten.mean.default,
            aten.amax.default,
            aten.amin.default,
            aten.var.correction,
            aten.var_mean.correction,
            aten._softmax.default,
            aten._softmax_backward_data.default,
            aten._log_softmax.default,
            aten._log_softmax_backward_data.default,
            aten.embedding.default,
            aten.native_dropout.default,
            aten.native_dropout_backward.default,
        ),
        -1,
    ),
    aten.native_layer_norm.default: 1,
    aten.native_layer_norm_backward.default: 2,
    aten.expand.default: 1,
    aten.view.default: 1,
    aten._unsafe_view.default: 1,
}
"""Ops beside elementwise ones that ask of sizes nothing but their pattern, with the position of a shape among their
arguments (-1: none is one).  No extent of a result is the sum of two, or a number that is given."""

_RESHAPING = frozenset((aten.view.default, aten._unsafe_view.default))


def _is_elementwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags and not bool(func._schema.is_mutable or func.is_view)


def _resolved(args: Sequence[Any]) -> tuple[Any, ...]:
    """A row-major tensor and a shape of as many elements, with the extent that it leaves open (-1).

    Raises ``NoPattern`` for any other: no pattern tells whether the elements are as many.  Row-major it is by its
    strides along dimensions of size 1, too, since views keep those.
    """
    source, shape = args
    if not all(type(n) is int for n in (*source.shape, *source.stride(), *shape)):
        raise NoPattern
    if source.stride() != packed(source.shape, range(source.dim())):
        raise NoPattern
    count, known = source.numel(), math.prod(n for n in shape if n != -1)
    if -1 in shape and known:
        shape = [count // known if n == -1 else n for n in shape]
    if math.prod(shape) != count or min(shape, default=1) < 1 or args[1].count(-1) > 1:
        raise NoPattern
    return source, shape


def _surroundings(args: Sequence[Any]) -> tuple[Any, ...]:
    """What results depend on beside the arguments."""
    kinds = {t.device.type for t in tensors_in(args)}
    autocast = tuple(
        (kind, torch.get_autocast_dtype(kind))
        for kind in sorted(kinds)
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    )
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast
