"""Lengths, iterators and what is made of them."""

from __future__ import annotations

from turret.frames.class_members import member_owner
from turret.plugins.capture.handlers.builtins.calls import callable_
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value, spelled
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.iterators import (
    DequeIterator,
    Enumerate,
    Filter,
    ItemsIterator,
    Map,
    ReversedIterator,
    Zip,
)
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import Deque, List, Range, Sequence, Slice
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor


@registry.function(len)
def len_(t: Tracer, value: Value) -> Value:
    return value.realize().length(t)


@registry.function(iter)
def iter_(t: Tracer, value: Value, end: Value | None = None, /) -> Value:
    if end is not None:
        if not callable_(t, value).constant():
            raise t.raised(TypeError, "iter(v, w): v must be callable")
        return t.call(t.wrap_known(polyfills.iterate_until), [value, end], {})
    return t.iterate(value)


@registry.function(next)
def next_(t: Tracer, iterator: Value, *default: Value) -> Value:
    if not default:
        return iterator.realize().next(t)
    item = t.next_or_none(iterator)
    return default[0] if item is None else item


@registry.kind(range)
def range_(t: Tracer, *args: Value) -> Value:
    parts = [a.realize() for a in args]
    if len(parts) == 1:
        parts = [Constant(0), parts[0], Constant(1)]
    elif len(parts) == 2:
        parts.append(Constant(1))
    made = Range([Constant(t.int_of(p)) for p in parts])
    try:
        made.constant()
    except (TypeError, ValueError) as error:
        raise t.raised_from(error) from None
    return made


@registry.kind(slice)
def slice_(t: Tracer, *args: Value) -> Value:
    none = Constant(None)
    if not 1 <= len(args) <= 3:
        t.fails(slice, *[None] * len(args))
    return Slice([none, args[0], none] if len(args) == 1 else [*args, *[none] * (3 - len(args))])


@registry.kind(enumerate)
def enumerate_(t: Tracer, items: Value, start: Value | None = None) -> Value:
    first = Constant(0) if start is None else start.realize()
    if not isinstance(first, Symbolic):
        first = Constant(t.int_of(first))
    return Enumerate(t.iterate(items), first)


@registry.kind(zip)
def zip_(t: Tracer, *items: Value, strict: Value | None = None) -> Value:
    return Zip([t.iterate(i) for i in items], strict is not None and t.truth(strict))


@registry.kind(map)
def map_(t: Tracer, function: Value, *items: Value) -> Value:
    if not items:
        raise t.raised(TypeError, "map() must have at least two arguments.")
    return Map(function.realize(), [t.iterate(i) for i in items])


@registry.kind(filter)
def filter_(t: Tracer, function: Value, items: Value) -> Value:
    return Filter(function.realize(), t.iterate(items))


@registry.kind(reversed)
def reversed_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Instance):
        found = value.call_special(t, "__reversed__")
        if found is not None:
            return found
        if look_up(t, value.kind, "__getitem__")[1] is None:
            raise t.raised(TypeError, f"{spelled(value.kind)!r} object is not reversible")
        count = t.int_of(value.length(t))
        return ItemsIterator([value.get_item(t, Constant(n)) for n in reversed(range(count))])
    if isinstance(value, Tensor):
        return value.call_method(t, "__reversed__", [], {})
    kind = value.type()
    if member_owner(kind, "__reversed__") is None and member_owner(kind, "__getitem__") is None:
        raise t.raised(TypeError, f"{spelled(kind)!r} object is not reversible")
    if isinstance(value, Deque):
        return DequeIterator(value, backwards=True)
    if isinstance(value, Sequence):
        return ReversedIterator(value)
    return ItemsIterator(value.unpack(t)[::-1])


@registry.function(sorted)
def sorted_(t: Tracer, items: Value, /, *, key: Value | None = None, reverse: Value | None = None) -> Value:
    items = items.realize()
    if isinstance(items, Set) and key is None:
        return List(t.sorted(list(items.items.values()), key, reverse))
    return List(t.sorted(t.all_items(items), key, reverse))
