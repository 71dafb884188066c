"""Iterators: over sequences, over items in hand, and the lazy builtins around other iterators."""

from __future__ import annotations

import collections
import itertools
import operator
from typing import Any

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value


class Iterator(Value):
    """Base of iterators that the program made."""

    kind: type = type(iter(()))

    def type(self) -> type:
        return self.kind

    def iterate(self, t: Tracer) -> Value:
        return self

    def truth(self, t: Tracer) -> bool:
        return True

    def key(self, t: Tracer) -> Any:
        return self

    def m___next__(self, t: Tracer) -> Value:
        return self.next(t)

    def m___iter__(self, t: Tracer) -> Value:
        return self


class SequenceIterator(Iterator):
    """Over a sequence that may change while it is iterated over, or over the numbers of a range."""

    def __init__(self, sequence: Any, numbers: range | None = None) -> None:
        self.sequence, self.numbers, self.position = sequence, numbers, 0
        self.kind = type(iter(range(0) if numbers is not None else () if issubclass(sequence.type(), tuple) else []))

    def next(self, t: Tracer) -> Value:
        items: Any = self.sequence.items if self.numbers is None else self.numbers
        if self.position >= len(items):
            self.sequence, self.numbers = _EMPTY, None
            raise t.raised(StopIteration)
        self.position += 1
        item = items[self.position - 1]
        return Constant(item) if self.numbers is not None else item

    def rebuild(self, r: Rebuilder) -> str:
        if self.numbers is not None:
            rest = self.numbers[self.position :]
            return r.assign(f"{r.constant(iter)}({r.constant(range)}({rest.start}, {rest.stop}, {rest.step}))")
        if self.sequence is _EMPTY:
            empty = {type(iter(range(0))): r.constant(range(0)), type(iter([])): "[]"}.get(self.kind, "()")
            return r.assign(f"{r.constant(iter)}({empty})")
        name = r.assign(f"{r.constant(iter)}({r.load(self.sequence)})")
        if self.position:
            r.after_effects(f"{r.constant(set_position)}({name}, {r.load(self.sequence)}, {self.position})")
        return name


class DequeIterator(Iterator):
    """Over a deque from either end, which must not change in the meantime."""

    def __init__(self, sequence: Any, backwards: bool = False) -> None:
        self.sequence, self.backwards, self.position, self.state = sequence, backwards, 0, sequence.state
        self.kind = type(self.over(collections.deque()))

    def over(self, items: collections.deque) -> Any:
        return reversed(items) if self.backwards else iter(items)

    def next(self, t: Tracer) -> Value:
        if self.sequence.state != self.state:
            raise t.raised(RuntimeError, "deque mutated during iteration")
        items = self.sequence.items
        if self.position >= len(items):
            raise t.raised(StopIteration)
        self.position += 1
        return items[-self.position if self.backwards else self.position - 1]

    def rebuild(self, r: Rebuilder) -> str:
        if self.sequence.state != self.state or getattr(self.sequence, "mutated", False):
            raise Unsupported("a graph break while iterating over a deque that was changed")
        make = r.constant(reversed if self.backwards else iter)
        return r.assign(f"{r.constant(advanced)}({make}({r.load(self.sequence)}), {self.position})")


def advanced(iterator: Any, count: int) -> Any:
    """An iterator, past some of its items."""
    for _ in range(count):
        next(iterator)
    return iterator


class ReversedIterator(Iterator):
    """``reversed`` of a sequence that may change while it is iterated over."""

    def __init__(self, sequence: Any) -> None:
        self.sequence, self.position = sequence, len(sequence.items) - 1
        self.is_of_list = issubclass(sequence.type(), list)
        self.kind = type(reversed([])) if self.is_of_list else reversed

    def next(self, t: Tracer) -> Value:
        items = self.sequence.items
        if not 0 <= self.position < len(items):
            self.sequence = _EMPTY
            raise t.raised(StopIteration)
        self.position -= 1
        return items[self.position + 1]

    def rebuild(self, r: Rebuilder) -> str:
        if self.sequence is _EMPTY:
            return r.assign(f"{r.constant(reversed)}({'[]' if self.is_of_list else '()'})")
        name = r.assign(f"{r.constant(reversed)}({r.load(self.sequence)})")
        r.after_effects(f"{r.constant(set_position)}({name}, {r.load(self.sequence)}, {self.position})")
        return name


def set_position(iterator: Any, items: Any, position: int) -> None:
    """Set the position of an iterator over a list or tuple, where the list is shorter than that by now, too."""
    missing = [None] * (position + 1 - len(items)) if isinstance(items, list) else []
    if missing:  # past the end the iterator would be set to it, and see what is appended from there on
        list.extend(items, missing)
    iterator.__setstate__(position)
    if missing:
        list.__delitem__(items, slice(-len(missing), None))


class _Empty:
    items: tuple = ()


_EMPTY = _Empty()


class ItemsIterator(Iterator):
    """Over items in hand."""

    def __init__(self, items: list[Value]) -> None:
        self.items = items
        self.position = 0

    def next(self, t: Tracer) -> Value:
        if self.position >= len(self.items):
            raise t.raised(StopIteration)
        self.position += 1
        return self.items[self.position - 1]

    def rebuild(self, r: Rebuilder) -> str:
        rest = "".join(r.load(v) + "," for v in self.items[self.position :])
        return r.assign(f"{r.constant(iter)}(({rest}))")


class Enumerate(Iterator):
    """``enumerate``."""

    kind = enumerate

    def __init__(self, inner: Value, count: Value) -> None:
        self.inner, self.count = inner, count

    def next(self, t: Tracer) -> Value:
        item = self.inner.next(t)
        count = self.count
        self.count = t.binary(operator.add, count, Constant(1))
        return t.new_tuple([count, item])

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(enumerate)}({r.load(self.inner)}, {r.load(self.count)})")


class Zip(Iterator):
    """``zip``, strict or not."""

    kind = zip

    def __init__(self, inners: list[Value], strict: bool = False) -> None:
        self.inners, self.strict = inners, strict

    def next(self, t: Tracer) -> Value:
        items: list[Value] = []
        if not self.inners:
            raise t.raised(StopIteration)
        for number, inner in enumerate(self.inners):
            item = t.next_or_none(inner)
            if item is None:
                if self.strict:
                    self.check_lengths(t, number)
                raise t.raised(StopIteration)
            items.append(item)
        return t.new_tuple(items)

    def check_lengths(self, t: Tracer, number: int) -> None:
        if number > 0:
            names = "argument 1" if number == 1 else f"arguments 1-{number}"
            raise t.raised(ValueError, f"zip() argument {number + 1} is shorter than {names}")
        for other, inner in enumerate(self.inners[1:], start=1):
            if t.next_or_none(inner) is not None:
                names = "argument 1" if other == 1 else f"arguments 1-{other}"
                raise t.raised(ValueError, f"zip() argument {other + 1} is longer than {names}")

    def rebuild(self, r: Rebuilder) -> str:
        inners = "".join(r.load(v) + ", " for v in self.inners)
        return r.assign(f"{r.constant(zip)}({inners}strict={self.strict})")


class Map(Iterator):
    """``map``."""

    kind = map

    def __init__(self, function: Value, inners: list[Value]) -> None:
        self.function, self.inners = function, inners

    def next(self, t: Tracer) -> Value:
        return t.call(self.function, [inner.next(t) for inner in self.inners], {})

    def rebuild(self, r: Rebuilder) -> str:
        inners = ", ".join(r.load(v) for v in self.inners)
        return r.assign(f"{r.constant(map)}({r.load(self.function)}, {inners})")


class Filter(Iterator):
    """``filter``."""

    kind = filter

    def __init__(self, function: Value, inner: Value) -> None:
        self.function, self.inner = function, inner

    def next(self, t: Tracer) -> Value:
        plain = isinstance(self.function, Constant) and self.function.value is None
        while True:
            item = self.inner.next(t)
            if t.truth(item if plain else t.call(self.function, [item], {})):
                return item

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(filter)}({r.load(self.function)}, {r.load(self.inner)})")


class Chain(Iterator):
    """``itertools.chain`` over an iterator of iterables."""

    kind = itertools.chain

    def __init__(self, outer: Value) -> None:
        self.outer = outer
        self.inner: Value | None = None

    def next(self, t: Tracer) -> Value:
        while True:
            if self.inner is None:
                self.inner = t.iterate(self.outer.next(t))
            item = t.next_or_none(self.inner)
            if item is not None:
                return item
            self.inner = None

    def rebuild(self, r: Rebuilder) -> str:
        chain = r.constant(itertools.chain)
        rest = r.assign(f"{chain}.from_iterable({r.load(self.outer)})")
        return rest if self.inner is None else r.assign(f"{chain}({r.load(self.inner)}, {rest})")


class Count(Iterator):
    """``itertools.count``."""

    kind = itertools.count

    def __init__(self, value: Value, step: Value) -> None:
        self.value, self.step = value, step

    def next(self, t: Tracer) -> Value:
        value = self.value
        self.value = t.binary(operator.add, value, self.step)
        return value

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(itertools.count)}({r.load(self.value)}, {r.load(self.step)})")
