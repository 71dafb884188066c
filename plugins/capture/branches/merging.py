"""What the two sides of an ``if`` leave in one place, as one value: what both have, or a result of a ``cond``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import torch

from turret.graph.fakes.either import is_row_major
from turret.plugins.capture.branches.graphs import scalar_tensor
from turret.plugins.capture.branches.watched import Watched
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.record.histories import nodes_below
from turret.plugins.capture.values.base import Constant, Tracer, Unread, Value
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.sequences import List, NamedTuple, Size, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor

Place = Callable[[list[Value]], Value | None]
"""Gives a merged value, of the results of the ``cond``."""
_NUMBERS = (int, float, bool)


class Apart(Exception):
    """Why two values are no one value."""


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

    def __init__(self, t: Tracer, sides: list[Side], watched: Watched) -> None:
        self.t, self.watched = t, watched
        self.one, self.other = sides
        self.outputs: list[tuple[Value, Value]] = []
        self.pairs: dict[tuple[int, int], Place] = {}
        self.partners: dict[int, Value] = {}
        """For each new container, the one of the other side that it is put together with."""

    def place(self, one: Value | None, other: Value | None) -> Place:
        """A variable: one that cannot be put together may be left, but not read."""
        outputs, pairs, partners = len(self.outputs), dict(self.pairs), dict(self.partners)
        try:
            return self.merge(one, other)
        except Apart as reason:
            del self.outputs[outputs:]
            self.pairs, self.partners = pairs, partners
            unread = Unread(f"a variable after a branch on data: {reason}", NOWHERE)
            return lambda results: unread

    def needed(self, one: Value | None, other: Value | None) -> Place:
        """A value that is needed in any case."""
        try:
            return self.merge(one, other)
        except Apart as reason:
            raise Unsupported(f"a branch on data: {reason}") from None

    def merge(self, one: Value | None, other: Value | None) -> Place:
        """One value of two; raises ``Apart``."""
        if one is other:
            return lambda results: one
        if one is None or other is None:
            raise Apart("one side alone sets it")
        if isinstance(one, Unread) or isinstance(other, Unread):
            raise Apart("of another branch on data")
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
        if type(one) is type(other) and type(one) in (Tuple, List, NamedTuple, Size, Dict):
            return self._container(one, other)
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
        parts = [self.merge(a, b) for a, b in zip(one.items, other.items, strict=True)]

        def build(results: list[Value]) -> Value:
            items: list[Any] = [part(results) for part in parts]
            return NamedTuple(items, one.kind) if isinstance(one, NamedTuple) else type(one)(items)

        return _once(build)

    def _dict(self, one: Dict, other: Dict) -> Place:
        if one.kind is not dict or other.kind is not dict or list(one.items) != list(other.items):
            raise Apart("dicts of different keys")
        parts = {k: (held, self.merge(v, other.items[k][1])) for k, (held, v) in one.items.items()}

        def build(results: list[Value]) -> Value:
            items: dict[Any, Any] = {k: (held, part(results)) for k, (held, part) in parts.items()}
            return Dict(items)

        return _once(build)

    def _tensor(self, one: Tensor, other: Tensor) -> Place:
        first, second = self.one.fake(one), self.other.fake(other)
        if not (_is_plain(one, first) and _is_plain(other, second)):
            raise Apart("tensors of a layout or class of their own")
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
        if first.requires_grad != second.requires_grad:
            raise Apart("tensors of which one requires gradients")
        if first.requires_grad and gradients_of(first) != gradients_of(second):
            raise Apart("tensors that give gradients to different tensors")
        number = self._output(one, other)
        return lambda results: results[number]

    def node(self, value: Value, side: Side, taken: set[int]) -> Any:
        """The node of an output in the region of a side, which is being recorded; ``taken``: memory of others."""
        t, recorder = self.t, self.t.recorder
        if not isinstance(value, Tensor):
            return recorder.node_here(scalar_tensor(t, value).node)
        node, fake = side.node(value), side.fake(value)
        storage = fake.untyped_storage()._cdata
        if storage in taken:
            made = recorder.call_method("clone", [Tensor(node, fake)], {})
            node = made.node  # type: ignore[attr-defined]
        taken.add(storage)
        return recorder.node_here(node)


def gradients_of(fake: torch.Tensor) -> set[int]:
    """The leaves of autograd that gradients of a tensor reach, by id."""
    if fake.grad_fn is None:
        return {id(fake)}
    return {id(node.variable) for node in nodes_below([fake]) if hasattr(node, "variable")}


def _once(build: Place) -> Place:
    made: list[Any] = []

    def place(results: list[Value]) -> Value | None:
        if not made:
            made.append(build(results))
        return made[0]

    return place


def _is_number(value: Value) -> bool:
    return isinstance(value, Symbolic) or (isinstance(value, Constant) and type(value.value) in _NUMBERS)


def _is_plain(value: Tensor, fake: torch.Tensor) -> bool:
    plain = type(value) is Tensor and value.outer is None and value.array is None and not value.stores
    strided = fake.layout is torch.strided and not fake.is_conj() and not fake.is_neg() and not fake.is_inference()
    return plain and strided and value.new_data is None


def _equal(one: Any, other: Any) -> bool:
    """Whether no program tells two constants apart."""
    if type(one) is not type(other):
        return False
    if type(one) is float:
        return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    return one is other or (type(one) in (int, str, bytes, bool) and one == other)
