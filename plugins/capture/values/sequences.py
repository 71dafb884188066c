"""Tuples, lists, deques, ranges and slices."""

from __future__ import annotations

import builtins
import collections
import operator
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch

from turret.frames.sources import Source
from turret.plugins.capture.errors import NotConstant, Raised, Unsupported
from turret.plugins.capture.values.base import (
    COMPARISONS,
    Answer,
    Constant,
    Rebuilder,
    Tracer,
    Value,
    refuse_to_drop,
    spelled,
)
from turret.plugins.capture.values.iterators import DequeIterator, SequenceIterator


class Sequence(Value):
    """Base: ``items`` are the elements in order."""

    kind: type = tuple

    def __init__(self, items: list[Value], source: Source | None = None) -> None:
        self.items, self.source = items, source

    def type(self) -> type:
        return self.kind

    def constant(self) -> Any:
        if self.mutable():
            raise NotConstant(self)
        return self.kind([v.constant() for v in self.items])

    def folded(self) -> Any:
        """A Python copy with all elements constant, for pure functions; raises ``NotConstant``."""
        return self.kind([folded(v) for v in self.items])

    def mutable(self) -> bool:
        return False

    def key(self, t: Tracer) -> Any:
        return tuple([v.realize().key(t) for v in self.items])

    def like(self, items: list[Value]) -> Sequence:
        """A new sequence of this kind."""
        return type(self)(items)

    def iterate(self, t: Tracer) -> Value:
        return SequenceIterator(self)

    def unpack(self, t: Tracer) -> list[Value]:
        return list(self.items)

    def length(self, t: Tracer) -> Value:
        return Constant(len(self.items))

    def truth(self, t: Tracer) -> bool:
        return bool(self.items)

    def position(self, t: Tracer, key: Value) -> Any:
        """``key`` as an int or slice of ints."""
        key = key.realize()
        if isinstance(key, Slice):
            return slice(*(t.bound_of(v) for v in key.parts))
        return t.int_of(key, self.wrong_index())

    def wrong_index(self) -> str:
        """The interpreter's words for an index that is no integer, with a place for its type's name."""
        return f"{self.base_kind().__name__} indices must be integers or slices, not {{}}"

    def get_item(self, t: Tracer, key: Value) -> Value:
        index = self.position(t, key)
        try:
            return self.part(index) if isinstance(index, slice) else self.items[index]
        except (IndexError, ValueError) as error:
            raise t.raised(type(error), str(error).replace("list", self.base_kind().__name__)) from None

    def part(self, index: slice) -> Value:
        """The elements of a slice."""
        return self.like(self.items[index])

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if operation is operator.add and isinstance(other, Sequence) and other.base_kind() is self.base_kind():
            return self.joined(t, [*self.items, *other.items])
        if operation is operator.mul:
            return self.joined(t, self.repeated(t, other))
        return NotImplemented

    def repeated(self, t: Tracer, times: Value) -> list[Value]:
        """The elements, so many times."""
        count = t.int_of(times, "can't multiply sequence by non-int of type '{}'")
        try:
            return self.items * count
        except (OverflowError, MemoryError) as error:
            raise t.raised_from(error) from None

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        counts = operation is operator.mul and hasattr(other.type(), "__index__")
        return self.binary(t, operation, other, False) if counts else NotImplemented

    def base_kind(self) -> builtins.type:
        return self.kind

    def joined(self, t: Tracer, items: list[Value]) -> Value:
        """What ``+`` and ``*`` make of the elements of both sides."""
        return self.like(items)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if not isinstance(other, Sequence) or other.base_kind() is not self.base_kind():
            return self.not_implemented_unless(other, self.base_kind())
        if symbol in ("==", "!=") and len(self.items) != len(other.items):
            return Constant(symbol == "!=")
        for mine, theirs in zip(self.items, other.items, strict=False):
            if t.equals_item(mine, theirs):
                continue
            if symbol in ("==", "!="):
                return Constant(symbol == "!=")
            return t.compare(symbol, mine, theirs)
        return Constant(COMPARISONS[symbol](len(self.items), len(other.items)))

    def m_index(self, t: Tracer, item: Value, *bounds: Value) -> Value:
        numbers = range(len(self.items))
        if bounds:
            parts = [t.int_of(b, "slice indices must be integers or have an __index__ method") for b in bounds]
            numbers = numbers[slice(parts[0], parts[1] if parts[1:] else None)]
        for number in numbers:
            if t.equals_item(self.items[number], item):
                return Constant(number)
        raise t.raised(ValueError, self.not_found(t, item))

    def not_found(self, t: Tracer, item: Value) -> str:
        """The interpreter's words where ``index`` finds nothing."""
        if not self.mutable():
            return "tuple.index(x): x not in tuple"
        return f"{t.constant_of(t.call(t.wrap_known(repr), [item], {}))} is not in {self.kind.__name__}"

    def m_count(self, t: Tracer, item: Value) -> Value:
        return Constant(sum(t.equals_item(v, item) for v in self.items))

    def m___len__(self, t: Tracer) -> Value:
        return self.length(t)

    def m___getitem__(self, t: Tracer, key: Value) -> Value:
        return self.get_item(t, key)

    def m___contains__(self, t: Tracer, item: Value) -> Value:
        return self.contains(t, item)

    def m___iter__(self, t: Tracer) -> Value:
        return self.iterate(t)


class Tuple(Sequence):
    """A tuple; where an operation would make one of all its elements alone, the interpreter gives the tuple itself."""

    def part(self, index: slice) -> Value:
        whole = type(self) is Tuple and index.indices(len(self.items)) == (0, len(self.items), 1)
        return self if whole else super().part(index)

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if operation is operator.add and isinstance(other, Size) and not isinstance(self, Size) and _SIZES_TAKE_TUPLES:
            return other.joined(t, [*self.items, *other.items])
        made = super().binary(t, operation, other, inplace)
        if operation is operator.add and type(made) is Tuple:
            assert isinstance(other, Tuple)
            return next((v for v in (self, other) if type(v) is Tuple and len(v.items) == len(made.items)), made)
        return self if type(self) is Tuple and isinstance(made, Tuple) and len(made.items) == len(self.items) else made

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"({''.join(r.load(v) + ',' for v in self.items)})")


class Size(Tuple):
    """``torch.Size``: of ints and symbolic ints."""

    kind = torch.Size

    def base_kind(self) -> builtins.type:
        return tuple

    @classmethod
    def of(cls, t: Tracer, items: list[Value]) -> Size:
        """The size of the numbers given; raises what torch raises of others."""
        return cls([_size_item(t, number, item.realize()) for number, item in enumerate(items)])

    def joined(self, t: Tracer, items: list[Value]) -> Value:
        return self.of(t, items)

    def m_numel(self, t: Tracer) -> Value:
        result: Value = Constant(1)
        for item in self.items:
            result = t.binary(operator.mul, result, item)
        return result

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(torch.Size)}(({''.join(r.load(v) + ',' for v in self.items)}))")


def _size_item(t: Tracer, number: int, item: Value) -> Value:
    kind = item.type()
    if kind is bool:
        return Constant(int(t.truth(item)))
    if issubclass(kind, (int, numpy.integer)):
        return item
    if hasattr(kind, "__index__"):
        raise Unsupported(f"torch.Size of {item.describe()}")
    raise t.raised(TypeError, f"torch.Size() takes an iterable of 'int' (item {number} is {spelled(kind)!r})")


_SIZES_TAKE_TUPLES = type(operator.add((), torch.Size())) is torch.Size
"""Whether a tuple and a size make a size in this version of torch, as a size and a tuple do."""


def t_is_int(value: Value) -> bool:
    """Whether a value is an int, known or symbolic."""
    return issubclass(value.realize().type(), int)


class NamedTuple(Tuple):
    """An instance of a class made by ``namedtuple``, or of one of torch's structured results."""

    def __init__(self, items: list[Value], kind: Any, source: Source | None = None) -> None:
        super().__init__(items, source)
        self.kind = kind

    def base_kind(self) -> builtins.type:
        return tuple

    def constant(self) -> Any:
        items = [v.constant() for v in self.items]
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)

    def folded(self) -> Any:
        items = [folded(v) for v in self.items]
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)

    def like(self, items: list[Value]) -> Sequence:
        return Tuple(items)

    def fields(self) -> tuple[str, ...]:
        """Field names in order."""
        named = getattr(self.kind, "_fields", None)
        if named is not None:
            return named
        return tuple(n for n in vars(self.kind) if type(vars(self.kind)[n]).__name__ == "member_descriptor")

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in self.fields():
            return self.items[self.fields().index(name)]
        own = None if hasattr(self, "m_" + name) else t.class_attribute(self, self.kind, name)
        return own or super().get_attr(t, name)

    def m__asdict(self, t: Tracer) -> Value:
        return t.new_dict({n: v for n, v in zip(self.fields(), self.items, strict=True)})

    def m__replace(self, t: Tracer, /, **changes: Value) -> Value:
        return NamedTuple([changes.get(n, v) for n, v in zip(self.fields(), self.items, strict=True)], self.kind)

    def rebuild(self, r: Rebuilder) -> str:
        items = ", ".join(r.load(v) for v in self.items)
        if hasattr(self.kind, "_fields"):
            return r.assign(f"{r.constant(tuple)}.__new__({r.load(r.t.wrap_known(self.kind))}, [{items}])")
        return r.assign(f"{r.constant(self.kind)}([{items}])")


class List(Sequence):
    """A list, new or one that existed before."""

    kind: type = list

    def __init__(
        self, items: list[Value], source: Source | None = None, assume_length: Callable[[], None] | None = None
    ) -> None:
        """``assume_length``: guards how many items there are, once the program depends on what is in the list.

        One that is only appended to may have had any number before.
        """
        self.held, self.source, self.assume_length = items, source, assume_length
        self.before = len(items)

    @property
    def items(self) -> list[Value]:
        if self.assume_length is not None:
            self.assume_length()
            self.assume_length = None
        return self.held

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.held = items

    def mutable(self) -> bool:
        return True

    def key(self, t: Tracer) -> Any:
        raise t.raised(TypeError, f"unhashable type: {spelled(self.kind)!r}")

    def like(self, items: list[Value]) -> Sequence:
        return List(items)

    def contents(self) -> list[Value]:
        """What is in it now, of which nothing is assumed."""
        return self.held

    def changed(self, t: Tracer, dropped: Iterable[Value] | None = None) -> None:
        """To be called before any change, with the items that it lets go of (None: any)."""
        refuse_to_drop(self, self.held, dropped)
        t.effects.note(self)

    def at(self, index: Any) -> list[Value]:
        """What lies at an index or a slice, if anything does."""
        if isinstance(index, slice):
            return self.items[index]
        return [self.items[index]] if -len(self.items) <= index < len(self.items) else []

    def get_item(self, t: Tracer, key: Value) -> Value:
        if self.assume_length is not None:
            index = self.position(t, key)
            if isinstance(index, int) and self.before - len(self.held) <= index < 0:
                return self.held[index]  # what the program itself has appended
        return super().get_item(t, key)

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        index = self.position(t, key)
        new: Any = value
        if isinstance(index, slice):
            plain = index.step in (None, 1)
            new = t.listed(value, "can only assign an iterable" if plain else "must assign iterable to extended slice")
        self.changed(t, self.at(index))
        try:
            self.items[index] = new
        except (IndexError, ValueError, TypeError) as error:
            raise t.raised(type(error), self.said(error)) from None

    def del_item(self, t: Tracer, key: Value) -> None:
        index = self.position(t, key)
        self.changed(t, self.at(index))
        try:
            del self.items[index]
        except (IndexError, TypeError) as error:
            raise t.raised(type(error), self.said(error)) from None

    def said(self, error: Exception) -> str:
        """What the interpreter says of an index, by what it says of one of a list."""
        return str(error)

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if inplace and operation is operator.add:
            self.m_extend(t, other)
            return self
        if inplace and operation is operator.mul:
            items = self.repeated(t, other)
            self.changed(t)
            self.items[:] = items
            return self
        return super().binary(t, operation, other, inplace)

    def m_append(self, t: Tracer, item: Value) -> Value:
        self.changed(t, ())
        self.held.append(item)
        return Constant(None)

    def m_extend(self, t: Tracer, items: Value) -> Value:
        items = items.realize()
        if isinstance(items, Sequence) or getattr(items, "payload", None) is self:
            more = items.unpack(t) if isinstance(items, Sequence) else list(self.items)
            self.changed(t, ())
            self.held.extend(more)
            return Constant(None)
        iterator = t.iterate(items)
        t.ask_length(items)
        for item in t.drain(iterator):  # one by one: what is iterated over may look at this list, or change it
            self.changed(t, ())
            self.held.append(item)
        return Constant(None)

    def m_insert(self, t: Tracer, index: Value, item: Value) -> Value:
        where = t.int_of(index)
        self.changed(t, ())
        self.items.insert(where, item)
        return Constant(None)

    def m_pop(self, t: Tracer, index: Value | None = None) -> Value:
        where = -1 if index is None else t.int_of(index)
        try:
            number = list(range(len(self.items))).pop(where)
        except (IndexError, OverflowError) as error:
            raise t.raised_from(error) from None
        self.changed(t, [self.items[number]])
        return self.items.pop(number)

    def m_remove(self, t: Tracer, item: Value) -> Value:
        equal = (n for n, v in enumerate(self.items) if t.equals_item(v, item))
        where = next(equal, None)
        if where is None:
            raise t.raised(ValueError, self.not_removed(t, item))
        self.changed(t, [self.items[where]])
        del self.items[where]
        return Constant(None)

    def not_removed(self, t: Tracer, item: Value) -> str:
        """The interpreter's words where ``remove`` finds nothing."""
        return "list.remove(x): x not in list"

    def m_clear(self, t: Tracer) -> Value:
        self.changed(t)
        self.items.clear()
        return Constant(None)

    def m_copy(self, t: Tracer) -> Value:
        return self.like(list(self.items))

    def m_reverse(self, t: Tracer) -> Value:
        self.changed(t, ())
        self.items.reverse()
        return Constant(None)

    def m_sort(self, t: Tracer, *, key: Value | None = None, reverse: Value | None = None) -> Value:
        """The list is empty while its own items are compared."""
        unordered = list(self.items)
        self.changed(t, ())
        self.items.clear()
        try:
            ordered = t.sorted(unordered, key, reverse)
        except Raised:
            self.items[:] = unordered
            raise
        modified = bool(self.items)
        self.items[:] = ordered
        if modified:
            raise t.raised(ValueError, "list modified during sort")
        return Constant(None)

    def m___setitem__(self, t: Tracer, key: Value, value: Value) -> Value:
        self.set_item(t, key, value)
        return Constant(None)

    def m___delitem__(self, t: Tracer, key: Value) -> Value:
        self.del_item(t, key)
        return Constant(None)

    def m___init__(self, t: Tracer, items: Value | None = None) -> Value:
        if self.items:
            self.m_clear(t)
        return self.m_extend(t, items) if items is not None else Constant(None)

    def rebuild(self, r: Rebuilder) -> str:
        name = r.remember(self, r.assign("[]"))
        self.fill(r, name)
        return name

    def fill(self, r: Rebuilder, name: str) -> None:
        if self.items:
            r.line(f"{name}.extend(({''.join(r.load(v) + ',' for v in self.items)}))")

    def replay(self, r: Rebuilder) -> None:
        held, kept = r.load(self), 0 if self.assume_length is None else self.before
        items = "".join(r.load(v) + "," for v in self.held[kept:])
        if self.assume_length is not None:
            r.effect(f"{r.constant(self.kind)}.extend({held}, ({items}))")
        else:
            self.replace(r, held, items)

    def replace(self, r: Rebuilder, held: str, items: str) -> None:
        """Write the lines that have it hold these items alone."""
        r.effect(f"{r.constant(self.kind)}.__setitem__({held}, {r.constant(slice(None))}, ({items}))")


class Deque(List):
    """A ``collections.deque``."""

    kind = collections.deque

    def __init__(
        self,
        items: list[Value],
        source: Source | None = None,
        maxlen: int | None = None,
        assume_length: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(items, source, assume_length)
        self.maxlen = maxlen
        self.state = 0
        """Changes so far of which items there are, or in what order."""

    def iterate(self, t: Tracer) -> Value:
        return DequeIterator(self)

    def like(self, items: list[Value]) -> Sequence:
        return Deque(items, None, self.maxlen)

    def position(self, t: Tracer, key: Value) -> Any:
        if isinstance(key.realize(), Slice):
            raise t.raised(TypeError, self.wrong_index().format("slice"))
        return super().position(t, key)

    def wrong_index(self) -> str:
        return "sequence index must be integer, not '{}'"

    def m___getitem__(self, t: Tracer, key: Value) -> Value:
        return self.get_item(t, Constant(t.int_of(key)))  # the method has other words for its errors than ``d[key]``

    def said(self, error: Exception) -> str:
        return "deque index out of range" if isinstance(error, IndexError) else str(error)

    def not_removed(self, t: Tracer, item: Value) -> str:
        return self.not_found(t, item)

    def m___init__(self, t: Tracer, items: Value | None = None, maxlen: Value | None = None) -> Value:
        most = None if maxlen is None or t.is_none(maxlen) else t.int_of(maxlen, "an integer is required")
        if most is not None and most < 0:
            raise t.raised(ValueError, "maxlen must be non-negative")
        if self.items or self.source is not None:
            raise Unsupported("a deque that is initialized once more")
        self.maxlen = most
        return Constant(None) if items is None else self.m_extend(t, items)

    def trim(self, left: bool) -> None:
        """Drop what is over ``maxlen``, at the far end of where was added."""
        while self.maxlen is not None and len(self.items) > self.maxlen:
            self.items.pop(0 if not left else -1)

    def changed(self, t: Tracer, dropped: Iterable[Value] | None = None) -> None:
        super().changed(t, dropped if self.maxlen is None else None)  # what is one too many goes, whatever the change
        self.state += 1

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        before = self.state
        super().set_item(t, key, value)
        self.state = before

    def m_reverse(self, t: Tracer) -> Value:
        before = self.state
        super().m_reverse(t)
        self.state = before
        return Constant(None)

    def m_clear(self, t: Tracer) -> Value:
        return super().m_clear(t) if self.items else Constant(None)

    def m_insert(self, t: Tracer, index: Value, item: Value) -> Value:
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            raise t.raised(IndexError, "deque already at its maximum size")
        return super().m_insert(t, index, item)

    def get_attr(self, t: Tracer, name: str) -> Value:
        return Constant(self.maxlen) if name == "maxlen" else super().get_attr(t, name)

    def m_append(self, t: Tracer, item: Value) -> Value:
        super().m_append(t, item)
        self.trim(False)
        return Constant(None)

    def m_extend(self, t: Tracer, items: Value) -> Value:
        for item in t.each(items.realize()):
            self.m_append(t, item)
        return Constant(None)

    def m_appendleft(self, t: Tracer, item: Value) -> Value:
        self.changed(t, ())
        self.items.insert(0, item)
        self.trim(True)
        return Constant(None)

    def m_extendleft(self, t: Tracer, items: Value) -> Value:
        for item in t.each(items.realize()):
            self.m_appendleft(t, item)
        return Constant(None)

    def m_popleft(self, t: Tracer) -> Value:
        if not self.items:
            raise t.raised(IndexError, "pop from an empty deque")
        self.changed(t, self.items[:1])
        return self.items.pop(0)

    def m_pop(self, t: Tracer) -> Value:  # type: ignore[override]
        if not self.items:
            raise t.raised(IndexError, "pop from an empty deque")
        return super().m_pop(t)

    def m_rotate(self, t: Tracer, count: Value | None = None) -> Value:
        steps = 1 if count is None else t.int_of(count)
        if len(self.items) > 1:
            self.changed(t, ())
            steps %= len(self.items)
            self.items[:] = self.items[-steps:] + self.items[:-steps]
        return Constant(None)

    def rebuild(self, r: Rebuilder) -> str:
        name = r.remember(self, r.assign(f"{r.constant(collections.deque)}((), {self.maxlen!r})"))
        self.fill(r, name)
        return name

    def replace(self, r: Rebuilder, held: str, items: str) -> None:
        base = r.constant(self.kind)
        r.effect(f"{base}.clear({held})")
        r.effect(f"{base}.extend({held}, ({items}))")


class Range(Value):
    """A ``range``; bounds may be symbolic."""

    def __init__(self, parts: list[Value], source: Source | None = None) -> None:
        self.parts, self.source = parts, source

    def type(self) -> type:
        return range

    def constant(self) -> Any:
        return range(*(v.constant() for v in self.parts))

    def concrete(self, t: Tracer) -> range:
        """The range, its bounds made into numbers (and assumed to be those)."""
        return range(*(t.int_of(v) for v in self.parts))

    def iterate(self, t: Tracer) -> Value:
        return SequenceIterator(self, t.concrete_range(self))

    def unpack(self, t: Tracer) -> list[Value]:
        return [Constant(v) for v in self.concrete(t)]

    def length(self, t: Tracer) -> Value:
        return Constant(len(self.concrete(t)))

    def truth(self, t: Tracer) -> bool:
        return bool(self.concrete(t))

    def get_item(self, t: Tracer, key: Value) -> Value:
        return t.fold(operator.getitem, [Constant(self.concrete(t)), key], {})

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "__iter__":
            return super().get_attr(t, name)
        return t.fold(getattr, [Constant(self.concrete(t)), Constant(name)], {})

    def m___iter__(self, t: Tracer) -> Value:
        return self.iterate(t)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if not isinstance(other, Range) or symbol not in ("==", "!="):
            return NotImplemented  # no class derives from it
        return Constant(COMPARISONS[symbol](self.concrete(t), other.concrete(t)))

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(range)}({', '.join(r.load(v) for v in self.parts)})")


class Slice(Value):
    """A ``slice``; ``parts`` are start, stop and step."""

    def __init__(self, parts: list[Value], source: Source | None = None) -> None:
        self.parts, self.source = parts, source

    def type(self) -> type:
        return slice

    def constant(self) -> Any:
        return slice(*(v.constant() for v in self.parts))

    def folded(self) -> slice:
        return slice(*map(folded, self.parts))

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return super().get_attr(t, name)

    def m_indices(self, t: Tracer, length: Value) -> Value:
        known = slice(*(t.bound_of(v) for v in self.parts))
        try:
            return t.wrap_known(known.indices(t.int_of(length)))
        except ValueError as error:
            raise t.raised_from(error) from None

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        return Tuple(self.parts).compare(t, symbol, Tuple(other.parts)) if isinstance(other, Slice) else NotImplemented

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(slice)}({', '.join(r.load(v) for v in self.parts)})")


_DEEPEST = 200
"""Containers within one another of which a copy is made: each takes some of the host's stack, which has an end, and
those that hold themselves have none."""


class _Folding(threading.local):
    """The containers of which this thread makes copies, one within the other."""

    depth = 0


_folding = _Folding()


def folded(value: Value) -> Any:
    """A Python copy of a value, containers of constants included, for pure functions; raises ``NotConstant``."""
    value = value.realize()
    copy = getattr(value, "folded", None)
    if copy is None:
        return value.constant()
    if _folding.depth == _DEEPEST:
        raise NotConstant(value)
    _folding.depth += 1
    try:
        return copy()
    finally:
        _folding.depth -= 1
