"""Sets and dictionaries of weak references that existed before the call: what is left in them is read.

A guard looks at what is left in one again.  Changes are left to Python: what was put in may be gone any time.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from turret.frames.class_members import class_member
from turret.frames.sources import CallSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.weak_references import refused
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.iterators import ItemsIterator
from turret.plugins.capture.values.objects import Instance


class _LeftItems(ItemsIterator):
    """What a method of such a container gives: a generator, which keeps alive no more than the item it gave last."""

    def __init__(self, container: Value, method: Callable, items: list[Value]) -> None:
        super().__init__(items)
        self.container, self.method, self.ended = container, method, False

    def type(self) -> type:
        return types.GeneratorType

    def next(self, t: Tracer) -> Value:
        self.ended = self.position >= len(self.items)
        return super().next(t)

    def rebuild(self, r: Rebuilder) -> str:
        name = r.assign(f"{r.constant(self.method)}({r.load(self.container)})")
        if self.position or self.ended:
            r.line(f"{r.constant(lookups.advance)}({name}, {self.position + self.ended})")
        return name


def _left(t: Tracer, container: Value, kind: type, look: Callable[[Any], tuple[Any, ...]]) -> list[Value]:
    """What a lookup finds in a container, as from now on."""
    held = container.realize()
    found = getattr(held, "object", None)
    if held.source is None or not isinstance(held, Instance) or not isinstance(found, kind):
        raise refused(f"reading {held.describe()}, which was made in compiled code", held)
    if any(_is_in(changed.source, held.source) for changed in t.effects.changed.values()):
        raise Unsupported(f"reading {held.describe()} after a change of what lies in it")
    t.provenance.bound_to_process("what is left in a container of weak references")
    left = look(found)
    for item in left:
        t.call_stack.check_held(item)
        t.effects.check_held(item)
    return t.wrap(left, CallSource(held.source, look)).realize().unpack(t)


def _is_in(source: Source | None, container: Source) -> bool:
    """Whether a source is a part of the container itself, not of an object that a lookup found in it."""
    while source is not None and source != container and not isinstance(source, CallSource):
        source = getattr(source, "base", None)
    return source == container


def _hashes_by_address(kind: type) -> bool:
    return all(class_member(kind, name) is getattr(object, name) for name in ("__eq__", "__hash__"))


def _position(t: Tracer, item: Value, left: list[Value]) -> int | None:
    """Where an object stands among others, which hash by their addresses."""
    item = item.realize()
    made_here = isinstance(item, Instance) and getattr(item, "object", None) is None
    if (item.source is None and not made_here) or not _hashes_by_address(item.type()):
        raise Unsupported(f"looking for {item.describe()} among weak references")
    others = [other.realize() for other in left]
    if not all(_hashes_by_address(other.type()) for other in others):
        raise Unsupported("looking among weak references to objects with a hash of their own")
    if item.source is None:
        return None
    return next((n for n, o in enumerate(others) if o.type() is item.type() and t.is_same(item, o)), None)


def _is_weak(item: Value) -> bool:
    return bool(item.realize().type().__weakrefoffset__)


def _contains(kind: type, look: Callable, t: Tracer, /, container: Value, item: Value) -> Value:
    left = _left(t, container, kind, look)
    return Constant(_is_weak(item) and _position(t, item, left) is not None)


def _length(kind: type, look: Callable, t: Tracer, /, container: Value) -> Value:
    return Constant(len(_left(t, container, kind, look)))


def _iterate(kind: type, look: Callable, method: Callable, t: Tracer, /, container: Value) -> Value:
    return _LeftItems(container, method, _left(t, container, kind, look))


def _iterate_pairs(kind: type, method: Callable, t: Tracer, /, container: Value) -> Value:
    keys, values = (_left(t, container, kind, look) for look in (lookups.weak_keys, lookups.weak_values))
    pairs = zip(keys, values, strict=True)
    return _LeftItems(container, method, [t.new_tuple([key, value]) for key, value in pairs])


def _found(t: Tracer, mapping: Value, key: Value) -> Value | None:
    if not _is_weak(key):
        name = key.realize().type().__name__
        raise t.raised(TypeError, f"cannot create weak reference to {name!r} object")
    kind = weakref.WeakKeyDictionary
    position = _position(t, key, _left(t, mapping, kind, lookups.weak_keys))
    return None if position is None else _left(t, mapping, kind, lookups.weak_values)[position]


@registry.function(weakref.WeakKeyDictionary.get)
def get(t: Tracer, self: Value, key: Value, default: Value | None = None) -> Value:
    """``WeakKeyDictionary.get``."""
    found = _found(t, self, key)
    return (Constant(None) if default is None else default) if found is None else found


@registry.function(weakref.WeakKeyDictionary.__getitem__)
def get_item(t: Tracer, self: Value, key: Value) -> Value:
    """``WeakKeyDictionary[key]``."""
    found = _found(t, self, key)
    if found is None:
        raise Unsupported("a key that is not in a WeakKeyDictionary, of which the error is its weak reference")
    return found


def _register(kind: Any, look: Callable, names: str, handler: Callable) -> None:
    for name in names.split():
        method = class_member(kind, name)
        given = (method,) if handler is _iterate else ()
        registry.functions[method] = functools.partial(handler, kind, look, *given)


_register(weakref.WeakSet, lookups.weak_set_items, "__contains__", _contains)
_register(weakref.WeakSet, lookups.weak_set_items, "__len__", _length)
_register(weakref.WeakSet, lookups.weak_set_items, "__iter__", _iterate)
_register(weakref.WeakKeyDictionary, lookups.weak_keys, "__contains__", _contains)
for _kind in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
    _register(_kind, lookups.weak_keys, "__len__", _length)
    _register(_kind, lookups.weak_keys, "keys __iter__", _iterate)
    _register(_kind, lookups.weak_values, "values", _iterate)
    registry.functions[_kind.items] = functools.partial(_iterate_pairs, _kind, _kind.items)
