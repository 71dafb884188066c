"""What existed before the call and is followed through: iterators over sequences and numbers, weak proxies."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from turret.frames.sources import CallSource, LocalSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.resume import STACK, is_resume
from turret.plugins.capture.values.base import Answer, Opaque, Rebuilder, Tracer, Value
from turret.plugins.capture.values.floats import ChangingFloat
from turret.plugins.capture.values.iterators import Chain, Filter, Iterator, Map, Zip

_MOST_ASKED = 8


class OutsideIterator(Iterator):
    """An iterator of the program's over a sequence or numbers.

    Args:
        left: what is left of it, which is guarded.  None: it goes on from call to call, so that where it is is not
            guarded, and what it gives is asked anew by each call; of constants, what is left after ``_MOST_ASKED`` is
            guarded all the same, since the code of a loop over all of them has a pass for each.
    """

    source: Source

    def __init__(self, object: Any, source: Source, left: Any = None) -> None:
        self.kind, self.source, self.object, self.left = type(object), source, object, left
        self.steps, self.ended = 0, False
        self.under: Value | None = None
        """The list that it goes over."""

    def next(self, t: Tracer) -> Value:
        if self.under is not None and self.under.mutated:
            raise Unsupported("next() of an iterator over a list that was changed")
        t.effects.note(self)
        if not self.ended:
            self.steps += 1  # an iterator that has said that it is at its end stays there: that counts, too
        self.ended = self.ended or not self.goes_on(t, self.steps - 1)
        if self.ended:
            raise t.raised(StopIteration)
        return self.item(t, self.steps - 1)

    def goes_on(self, t: Tracer, number: int) -> bool:
        """Whether there is another item after that many, guarded."""
        if self.left is None and number == _MOST_ASKED and self.kind in NUMBER_AND_TEXT_ITERATORS:
            rest = lookups.items_ahead(number)
            t.guards.take("CALL", self.source, (rest, rest(self.object)))
            self.left = lookups.items_left(self.object)
        if self.left is not None:
            return number < len(self.left)
        ahead = lookups.has_ahead(number)
        t.guards.take("CALL", self.source, (ahead, ahead(self.object)))
        return ahead(self.object)

    def item(self, t: Tracer, number: int) -> Value:
        """The item after that many."""
        if self.left is not None:
            return t.wrap_known(self.left[number])
        ahead = lookups.item_ahead(number)
        found, source = ahead(self.object), CallSource(self.source, ahead)
        if not t.policy.is_number_of_call(source, found):
            return t.wrap(found, source)
        t.guards.take("TYPE", source, type(found))
        return t.recorder.int_input(found, source) if type(found) is int else ChangingFloat(t, found, source)

    def rebuild(self, r: Rebuilder) -> str:
        return r.source(self.source)

    def replay(self, r: Rebuilder) -> None:
        r.effect(f"{r.constant(lookups.advance)}({r.load(self)}, {self.steps})")

    def given(self, r: Rebuilder) -> int:
        """How many items it gave."""
        return self.steps - self.ended


def outside_iterator(t: Tracer, object: Any, source: Source) -> Value:
    """An iterator that is followed, but for one behind a graph break: one code serves all rounds of a broken loop."""
    t.guards.take("TYPE", source, type(object))
    sequence = lookups.sequence_under(object)
    if is_behind_break(t, source) or type(sequence) not in _SEQUENCES:
        return Opaque(object, source)
    under = CallSource(source, lookups.sequence_under)
    t.guards.take("TYPE", under, type(sequence))
    if type(object) not in NUMBER_AND_TEXT_ITERATORS:
        made = OutsideIterator(object, source)
        made.under = t.wrap(sequence, under).realize() if type(sequence) is list else None
        return made
    left = lookups.items_left(object)
    if t.policy.moved_on(source, left):
        return OutsideIterator(object, source)
    t.guards.take("CALL", source, (lookups.items_left, left))
    return OutsideIterator(object, source, left)


def counter(t: Tracer, object: itertools.count, source: Source) -> Value:
    """An ``itertools.count`` of plain numbers, which is followed; any other is not."""
    t.guards.take("TYPE", source, itertools.count)
    followed = not is_behind_break(t, source) and lookups.has_ahead(0)(object)
    return OutsideIterator(object, source) if followed else Opaque(object, source)


class _FromBefore(Iterator):
    """An iterator that is the program's own, and stays the one that it is; its ``source`` leads to it."""

    def rebuild(self, r: Rebuilder) -> str:
        assert self.source is not None
        return r.source(self.source)


class OutsideChain(_FromBefore, Chain):
    """An ``itertools.chain`` of the program's that was not asked for anything before the frame began."""

    def __init__(self, t: Tracer, outer: Value) -> None:
        super().__init__(outer)
        self.step, self.location = t.call_stack.step, t.call_stack.location()
        self.taken: list[tuple[Value, int]] = []
        """The iterators that it was in so far, and how many items it took off each."""

    def next(self, t: Tracer) -> Value:
        t.effects.note(self)
        item = super().next(t)
        inner = self.inner
        assert inner is not None, "which gave the item"
        count = self.taken.pop()[1] if self.taken and self.taken[-1][0] is inner else 0
        self.taken.append((inner, count + 1))
        return item

    def replay(self, r: Rebuilder) -> None:
        """Nothing where what it is over says where it is; inside one of its iterables, take as many items once more."""
        if self.inner is None:
            return
        parts = [(self.outer, len(self.taken)), *self.taken]
        if any(getattr(part, "given", _unknown)(r) != count for part, count in parts):
            message = "a chain from before that is left inside one of its iterables"
            raise Unsupported(message, step=self.step, location=self.location)
        for part, _ in parts:
            r.t.effects.changed.pop(id(part), None)
        r.effect(f"{r.constant(lookups.advance)}({r.load(self)}, {sum(count for _, count in self.taken)})")


def _unknown(r: Rebuilder) -> None:
    return None


class OutsideZip(_FromBefore, Zip):
    """A ``zip`` of the program's: where it is is where the iterators are that it is over."""


class OutsideMap(_FromBefore, Map):
    """A ``map`` of the program's, which has no state of its own either."""


class OutsideFilter(_FromBefore, Filter):
    """A ``filter`` of the program's, which has no state of its own either."""


def combined_iterator(t: Tracer, object: Any, source: Source) -> Value:
    """A ``chain``, ``zip``, ``map`` or ``filter`` of the program's, which is followed where what it is over is."""
    kind = type(object)
    t.guards.take("TYPE", source, kind)
    found = lookups.parts_of_iterator(object)
    if is_of_loop(t, source) or not found:
        return Opaque(object, source)
    values = t.wrap(found, CallSource(source, lookups.parts_of_iterator)).unpack(t)
    if not all(is_followed(v) for v in values[kind in (map, filter) :]):
        return Opaque(object, source)
    made = _combined(t, object, source, values)
    if made is None:
        return Opaque(object, source)
    made.source = source
    return made


def _combined(t: Tracer, object: Any, source: Source, values: list[Value]) -> Value | None:
    """What is over such values; None for a ``map`` that is strict."""
    kind = type(object)
    if kind is itertools.chain:
        return OutsideChain(t, values[0].realize())
    if kind is filter:
        return OutsideFilter(values[0], values[1])
    strict = lookups.is_strict(object)
    t.guards.take("CALL", source, (lookups.is_strict, strict))
    if kind is zip:
        return OutsideZip(values, strict)
    return None if strict else OutsideMap(values[0], values[1:])


def is_followed(iterator: Value) -> bool:
    """Whether what an iterator from before gives is known to capture."""
    return not isinstance(iterator.realize(), Opaque)


def is_of_loop(t: Tracer, source: Source) -> bool:
    """Whether an iterator is the one of a loop with a graph break in it: one code serves all of its rounds."""
    return isinstance(source, LocalSource) and is_behind_break(t, source) and source.name.startswith(STACK)


def is_behind_break(t: Tracer, source: Source) -> bool:
    root = t.call_stack.root
    return isinstance(source, LocalSource) and root is not None and is_resume(root.code)


class Proxy(Opaque):
    """A ``weakref.proxy`` of the program's: attributes and methods are those of the object that it stands for."""

    def __init__(self, t: Tracer, object: Any, source: Source) -> None:
        super().__init__(object, source)
        self.referent = t.wrap(lookups.referent(object), CallSource(source, lookups.referent))

    def get_attr(self, t: Tracer, name: str) -> Value:
        return self.referent.realize().get_attr(t, name)

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        self.referent.realize().set_attr(t, name, value)

    def del_attr(self, t: Tracer, name: str) -> None:
        self.referent.realize().del_attr(t, name)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.referent.realize().call_method(t, name, args, kwargs)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        return t.compare(symbol, self.referent, other.referent if isinstance(other, Proxy) else other)

    def truth(self, t: Tracer) -> bool:
        return self.referent.realize().truth(t)

    def rebuild(self, r: Rebuilder) -> str:
        assert self.source is not None
        return r.source(self.source)


def proxy(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, weakref.ProxyType)
    return Proxy(t, object, source)


NUMBER_AND_TEXT_ITERATORS = tuple(type(iter(v)) for v in (range(0), range(2**70), "", "\u00e4", b""))
"""Their items are constants."""
_SEQUENCES = (range, str, bytes, list, tuple)
SEQUENCE_ITERATORS: tuple[type, ...] = (type(iter([])), type(iter(())))
