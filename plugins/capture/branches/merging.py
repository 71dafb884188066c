"""What the two sides of an ``if`` leave in one place, as one value: what both have, or a result of a ``cond``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import torch

from turret.graph.fakes.either import is_row_major
from turret.plugins.capture.branches.graphs import scalar_tensor
from turret.plugins.capture.branches.undecided import Undecided, leaves_of
from turret.plugins.capture.branches.watched import Watched
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.record.histories import nodes_below
from turret.plugins.capture.values.base import Constant, Lazy, MethodOfValue, Tracer, Unread, Value
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.sequences import List, NamedTuple, Size, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor

Place = Callable[[list[Value]], Value | None]
"""Gives a merged value, of the results of the ``cond``."""
_NUMBERS = (int, float, bool)
_SEQUENCES = (Tuple, List, NamedTuple, Size)
_MOST = 16
"""Objects of which data decide which one it is."""
_PACKED: Any = object()
"""In place of the partner of a container that one side alone has."""


class Apart(Exception):
    """Why two values are no one value."""


class TooEarly(Unsupported):
    """What the sides leave is no one state: the ways may be followed farther, up to where it makes no difference."""


class Blank(Value):
    """What a side leaves where the other one alone has a tensor: zeros, which nobody looks at."""

    def __init__(self, like: Tensor) -> None:
        self.like = like

    def node(self, t: Tracer, like: torch.Tensor) -> Any:
        """The node of zeros of a layout; extents that are not known are none at all."""
        order = list(range(like.dim()))
        if not is_row_major(like):
            order.sort(key=like.stride().__getitem__, reverse=True)
        sizes: list[Value] = [Constant(like.shape[n] if isinstance(like.shape[n], int) else 0) for n in order]
        options = {"dtype": t.wrap_known(like.dtype), "device": t.wrap_known(like.device)}
        made = t.recorder.call(torch.zeros, [t.new_tuple(sizes)], options)
        if not is_row_major(like):
            made = t.recorder.call_method("permute", [made, *(Constant(order.index(n)) for n in range(len(order)))], {})
        return made.node  # type: ignore[attr-defined]


@attrs.define(eq=False)
class Side:
    """One of the ways behind a jump, as far as it was followed."""

    variables: list[Any]
    stack: list[Value]
    cells: list[Value | None]
    result: Value | None
    own: dict[int, tuple[Any, torch.Tensor]]
    """By the ids of tensors from before that a side writes to, the copies of its own that it has for them."""

    def fake(self, value: Tensor) -> torch.Tensor:
        return self.own[id(value)][1] if id(value) in self.own else value.fake

    def node(self, value: Tensor) -> Any:
        return self.own[id(value)][0] if id(value) in self.own else value.node


class Merger:
    """Pairs up values of two sides; those that differ become ``outputs``."""

    def __init__(self, t: Tracer, sides: list[Side], watched: Watched, predicate: Tensor) -> None:
        self.t, self.watched, self.predicate = t, watched, predicate
        self.one, self.other = sides
        self.around = watched.around()
        self.needs_flag = False
        self.flag: Any = None
        """What tells objects that data decide on; the predicate, as it was at the branch."""
        self.outputs: list[tuple[Value, Value]] = []
        self.pairs: dict[tuple[int, int], Place] = {}
        self.partners: dict[int, Value] = {}
        """For each new container, the one of the other side that it is put together with."""
        self.kept: list[Value] = []
        """What is known by its id."""

    def place(self, one: Value | None, other: Value | None) -> Place:
        """A variable: one that cannot be put together may be left, but not read."""
        try:
            return self.together(one, other)
        except Apart as reason:
            unread = Unread(f"a variable after a branch on data: {reason}", NOWHERE)
            return lambda results: unread

    def needed(self, one: Value | None, other: Value | None) -> Place:
        """A value that is needed in any case."""
        try:
            return self.together(one, other)
        except Apart as reason:
            raise Unsupported(f"a branch on data: {reason}") from None

    def stack(self) -> list[Place]:
        """What is on the stack."""
        try:
            return [self.together(a, b) for a, b in zip(self.one.stack, self.other.stack, strict=True)]
        except Apart as reason:
            raise TooEarly(f"a branch on data: {reason}") from None

    def together(self, one: Value | None, other: Value | None) -> Place:
        """One value of two, or what leaves the choice to data; raises ``Apart``, of which nothing is left behind."""
        known = len(self.outputs), dict(self.pairs), dict(self.partners)
        try:
            return self.merge(one, other)
        except Apart as reason:
            self.forget(*known)
            if one is None or other is None or not self.t.policy.splits:
                raise
            try:
                return self.undecided(one, other)
            except Apart:
                self.forget(*known)
                raise reason from None

    def forget(self, outputs: int, pairs: dict[tuple[int, int], Place], partners: dict[int, Value]) -> None:
        del self.outputs[outputs:]
        self.pairs, self.partners = pairs, partners

    def undecided(self, one: Value, other: Value) -> Place:
        """Both of two values, of which a flag tells the one that the program has."""
        if len(leaves_of(one)) + len(leaves_of(other)) > _MOST:
            raise Apart(f"more than {_MOST} objects that data decide on")
        parts = [self.packed(value, side) for side, value in enumerate((one, other))]
        self.needs_flag = self.t.undecided = True

        def build(results: list[Value]) -> Value:
            mine, theirs = (part(results) for part in parts)
            assert mine is not None and theirs is not None
            return Undecided(self.t, self.flag, mine, theirs)

        return _once(build)

    def packed(self, value: Value, side: int) -> Place:
        """A value of one side, as it is behind the ``cond``; of use where that side runs.  Raises ``Apart``."""
        if isinstance(value, Undecided) and value.flag is self.predicate:
            return self.packed(value.chosen(side == 0), side)
        value = value.made if isinstance(value, Lazy) and value.made is not None else value
        if self.is_from_before(value):
            return lambda results: value
        if isinstance(value, Unread) and not isinstance(value, Undecided):
            raise Apart(value.describe())
        key = id(value), side
        if key not in self.pairs:
            self.kept.append(value)
            self.pairs[key] = self._packed(value, side)
        return self.pairs[key]

    def behind(self, value: Value, side: int, results: list[Value]) -> Value | None:
        """What stands for a value of one side behind the ``cond``; None where nothing does."""
        if self.is_from_before(value):
            return value
        place = self.pairs.get((id(value), side))
        return None if place is None else place(results)

    def is_from_before(self, value: Value) -> bool:
        """Whether a value means the same behind the branch as in its sides."""
        if isinstance(value, (Tensor, Symbolic)):
            return value.node.graph in self.around
        if isinstance(value, Constant) or id(value) in self.watched.values or value.source is not None:
            return True
        return not isinstance(value, Unread) and getattr(value, "object", None) is not None

    def _packed(self, value: Value, side: int) -> Place:
        if isinstance(value, Undecided):
            flag, *parts = (self.packed(v, side) for v in (value.flag, value.one, value.other))
            return _once(lambda results: Undecided(self.t, *(part(results) for part in (flag, *parts))))  # type: ignore[arg-type]
        if isinstance(value, Tensor):
            fake = (self.one, self.other)[side].fake(value)
            if not _is_plain(value, fake) or not (is_row_major(fake) or _is_permuted(fake)):
                raise Apart("tensors of a layout or class of their own")
            number = self._output(*((value, Blank(value)) if side == 0 else (Blank(value), value)))
            return lambda results: results[number]
        if isinstance(value, Symbolic):
            zero = Constant(value.type()(0))
            number = self._output(*((value, zero) if side == 0 else (zero, value)))
            return lambda results: results[number]
        if type(value) in _SEQUENCES or type(value) is Dict:
            return self._packed_container(value, side)
        raise Apart(f"{value.describe()} of one side")

    def _packed_container(self, value: Any, side: int) -> Place:
        if isinstance(value, (List, Dict)) and self.partners.setdefault(id(value), _PACKED) is not _PACKED:
            raise Apart("a container of one side that is several of the other")
        if isinstance(value, Dict):
            if value.kind is not dict:
                raise Apart(f"{value.describe()} of one side")
            named = {k: (held, self.packed(v, side)) for k, (held, v) in value.items.items()}
            return _once(lambda results: Dict({k: (held, part(results)) for k, (held, part) in named.items()}))  # type: ignore[misc]
        parts = [self.packed(v, side) for v in value.items]
        return _once(lambda results: _like(value, [part(results) for part in parts]))

    def merge(self, one: Value | None, other: Value | None) -> Place:
        """One value of two; raises ``Apart``."""
        if one is other:
            return lambda results: one
        if one is None or other is None:
            raise Apart("one side alone sets it")
        if isinstance(one, Unread) or isinstance(other, Unread):
            raise Apart("of another branch on data")
        self.kept += (one, other)
        one, other = one.realize(), other.realize()
        if one is other:
            return lambda results: one
        key = id(one), id(other)
        if key not in self.pairs:
            self.pairs[key] = self._merge(one, other)
        return self.pairs[key]

    def _merge(self, one: Value, other: Value) -> Place:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            return self._tensor(one, other)
        if isinstance(one, Constant) and isinstance(other, Constant) and _equal(one.value, other.value):
            return lambda results: one
        if _is_number(one) and _is_number(other):
            return self._number(one, other)
        return self._objects(one, other)

    def _objects(self, one: Value, other: Value) -> Place:
        if type(one) is type(other) and type(one) in (*_SEQUENCES, Dict):
            return self._container(one, other)
        if _is_bound(one) and _is_bound(other) and one.name == other.name:  # type: ignore[attr-defined]
            owner, name = self.together(one.owner, other.owner), one.name  # type: ignore[attr-defined]
            return _once(lambda results: MethodOfValue(owner(results), name))  # type: ignore[arg-type]
        mine, theirs = getattr(one, "object", None), getattr(other, "object", None)
        if mine is not None and mine is theirs:
            return lambda results: one
        raise Apart(f"{one.describe()} of one side and {other.describe()} of the other")

    def _number(self, one: Value, other: Value) -> Place:
        kind = one.type()
        if kind is not other.type():
            raise Apart(f"a number that is {kind.__name__} or {other.type().__name__}")
        if kind is int and any(isinstance(v, Constant) and abs(v.value) >= 2**62 for v in (one, other)):
            raise Apart("an integer that is too large")
        if self.t.policy.splits > 1 and isinstance(one, Constant) and isinstance(other, Constant):
            raise Apart("numbers that may be needed as constants")
        number = self._output(one, other)
        return lambda results: results[number]

    def _output(self, one: Value, other: Value) -> int:
        self.outputs.append((one, other))
        return len(self.outputs) - 1

    def _container(self, one: Any, other: Any) -> Place:
        for mine, theirs in ((one, other), (other, one)):
            if not isinstance(mine, (List, Dict)):
                continue  # which of two equal tuples it is, no program should ask
            if mine.source is not None or id(mine) in self.watched.values:
                raise Apart(f"{mine.describe()} that was there before")
            if self.partners.setdefault(id(mine), theirs) is not theirs:
                raise Apart("a container of one side that is several of the other")
        if isinstance(one, Dict):
            return self._dict(one, other)
        if len(one.items) != len(other.items) or one.kind is not other.kind:
            raise Apart("sequences of different lengths")
        parts = [self.together(a, b) for a, b in zip(one.items, other.items, strict=True)]

        return _once(lambda results: _like(one, [part(results) for part in parts]))

    def _dict(self, one: Dict, other: Dict) -> Place:
        if one.kind is not dict or other.kind is not dict or list(one.items) != list(other.items):
            raise Apart("dicts of different keys")
        parts = {k: (held, self.together(v, other.items[k][1])) for k, (held, v) in one.items.items()}

        def build(results: list[Value]) -> Value:
            items: dict[Any, Any] = {k: (held, part(results)) for k, (held, part) in parts.items()}
            return Dict(items)

        return _once(build)

    def _tensor(self, one: Tensor, other: Tensor) -> Place:
        first, second = self.one.fake(one), self.other.fake(other)
        if not (_is_plain(one, first) and _is_plain(other, second)):
            raise Apart("tensors of a layout or class of their own")
        _check_layouts(first, second)
        if first.requires_grad != second.requires_grad:
            raise Apart("tensors of which one requires gradients")
        if first.requires_grad and gradients_of(first) != gradients_of(second):
            raise Apart("tensors that give gradients to different tensors")
        if self.t.policy.splits and (self.is_from_before(one) or self.is_from_before(other)):
            raise Apart("another tensor of the program")
        number = self._output(one, other)
        return lambda results: results[number]

    def node(self, value: Value, side: Side, taken: set[int]) -> Any:
        """The node of an output in the region of a side, which is being recorded; ``taken``: memory of others."""
        t, recorder = self.t, self.t.recorder
        if isinstance(value, Blank):
            return value.node(t, next(s for s in (self.one, self.other) if s is not side).fake(value.like))
        if not isinstance(value, Tensor):
            return recorder.node_here(scalar_tensor(t, value).node)
        node, fake = side.node(value), side.fake(value)
        storage = fake.untyped_storage()._cdata
        if storage in taken:
            made = recorder.call_method("clone", [Tensor(node, fake)], {})
            node = made.node  # type: ignore[attr-defined]
        taken.add(storage)
        return recorder.node_here(node)


def _check_layouts(first: torch.Tensor, second: torch.Tensor) -> None:
    """Raise ``Apart`` where no one tensor stands for either."""
    if first.dtype is not second.dtype or first.device != second.device:
        raise Apart("tensors of different dtypes or devices")
    if first.dim() != second.dim():
        raise Apart("tensors of different numbers of dimensions")
    if str(first.shape) != str(second.shape):
        if not (is_row_major(first) and is_row_major(second)):
            raise Apart("tensors of different sizes that are not contiguous")
    elif str(first.stride()) != str(second.stride()):
        raise Apart("tensors of different strides")
    elif str(torch.empty_like(first).stride()) != str(first.stride()):
        raise Apart("views that a copy has other strides than")


def gradients_of(fake: torch.Tensor) -> set[int]:
    """The leaves of autograd that gradients of a tensor reach, by id."""
    if fake.grad_fn is None:
        return {id(fake)}
    return {id(node.variable) for node in nodes_below([fake]) if hasattr(node, "variable")}


def _like(sequence: Any, items: list[Any]) -> Value:
    """A new sequence of the same kind."""
    return NamedTuple(items, sequence.kind) if isinstance(sequence, NamedTuple) else type(sequence)(items)


def _once(build: Place) -> Place:
    made: list[Any] = []

    def place(results: list[Value]) -> Value | None:
        if not made:
            made.append(build(results))
        return made[0]

    return place


def _is_bound(value: Value) -> bool:
    """Whether a value is a method that its owner is asked for by name."""
    return type(value) is MethodOfValue and value.source is None and value.function is None


def _is_number(value: Value) -> bool:
    return isinstance(value, Symbolic) or (isinstance(value, Constant) and type(value.value) in _NUMBERS)


def _is_plain(value: Tensor, fake: torch.Tensor) -> bool:
    plain = type(value) is Tensor and value.outer is None and value.array is None and not value.stores
    strided = fake.layout is torch.strided and not fake.is_conj() and not fake.is_neg() and not fake.is_inference()
    return plain and strided and value.new_data is None


def _is_permuted(fake: torch.Tensor) -> bool:
    """Whether a tensor of known sizes lies as a contiguous one of which dimensions are exchanged."""
    if not all(isinstance(n, int) for n in (*fake.shape, *fake.stride())) or 0 in fake.shape or 1 in fake.shape:
        return False
    order = sorted(range(fake.dim()), key=fake.stride().__getitem__, reverse=True)
    return is_row_major(fake.permute(order))


def _equal(one: Any, other: Any) -> bool:
    """Whether no program tells two constants apart."""
    if type(one) is not type(other):
        return False
    if type(one) is float:
        return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    return one is other or (type(one) in (int, str, bytes, bool) and one == other)
