"""What existed before the call and is followed through: iterators over numbers and text, proxies of weak references."""

from __future__ import annotations

import weakref
from typing import Any

from turret.frames.sources import CallSource, LocalSource, Source
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.resume import is_resume
from turret.plugins.capture.values.base import Opaque, Rebuilder, Tracer, Value
from turret.plugins.capture.values.iterators import Iterator


class OutsideIterator(Iterator):
    """An iterator of the program's over a range, text or bytes; what is left of it is guarded."""

    def __init__(self, object: Any, source: Source) -> None:
        self.kind, self.source = type(object), source
        self.left, self.steps = lookups.items_left(object), 0

    def next(self, t: Tracer) -> Value:
        t.effects.note(self)
        self.steps += 1  # an iterator that has said that it is at its end stays there: that counts, too
        if self.steps > len(self.left):
            self.steps = len(self.left) + 1
            raise t.raised(StopIteration)
        return t.wrap_known(self.left[self.steps - 1])

    def rebuild(self, r: Rebuilder) -> str:
        assert self.source is not None
        return r.source(self.source)

    def replay(self, r: Rebuilder) -> None:
        r.effect(f"{r.constant(lookups.advance)}({r.load(self)}, {self.steps})")


def outside_iterator(t: Tracer, object: Any, source: Source) -> Value:
    """An iterator that is followed, but for one behind a graph break: one code serves all rounds of a broken loop."""
    t.guards.take("TYPE", source, type(object))
    root = t.call_stack.root
    if isinstance(source, LocalSource) and root is not None and is_resume(root.code):
        return Opaque(object, source)
    t.guards.take("CALL", source, (lookups.items_left, lookups.items_left(object)))
    return OutsideIterator(object, source)


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

    def compare(self, t: Tracer, symbol: str, other: Value) -> Value | None:
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
