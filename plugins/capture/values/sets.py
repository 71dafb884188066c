"""Sets, which are iterated over in the order of their hash table.

That order depends on everything that the set went through: what was in it once, and how large the sets were that were
merged into it.  So a set keeps the calls that made and changed it, and compiled code makes the same calls; and each
call is made while capturing, too, on a table of keys, whose order is that of the program's set where the hashes are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from turret.frames.sources import Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import COMPARISONS, Answer, Constant, Rebuilder, Tracer, Value, refuse_to_drop
from turret.plugins.capture.values.iterators import ItemsIterator
from turret.plugins.capture.values.mappings import Dict, DictView, is_among, view_items
from turret.plugins.capture.values.sequences import Sequence as SequenceValue
from turret.plugins.capture.values.sequences import folded

_OPERATORS = {"|": operator.or_, "&": operator.and_, "-": operator.sub, "^": operator.xor}
_SYMBOLS = {operation: symbol for symbol, operation in _OPERATORS.items()}
_IN_PLACE = {operator.or_: "__ior__", operator.and_: "__iand__", operator.sub: "__isub__", operator.xor: "__ixor__"}
_STABLE = (int, float, complex, str, bytes, bool, type(None))


def is_stable(key: Any) -> bool:
    """Whether a key hashes as the program's object does."""
    return type(key) in _STABLE or (type(key) in (tuple, frozenset) and all(map(is_stable, key)))


@attrs.frozen(eq=False)
class _Operand:
    """What a call takes beside the set: ``table`` is the same of keys, ``pairs`` are keys and their values."""

    table: Any
    pairs: Sequence[tuple[Any, Value]]
    known: bool
    form: str = "{}"
    """Code that makes it of its values' names, each with a comma behind it."""
    of: Set | None = None
    calls: int = 0
    """For a set: how many calls it had seen."""


class Set(Value):
    """A set or frozenset; ``items`` maps hashable keys to elements.

    ``known``: the order of ``table`` is that of the program's set.  It is not where hashes are addresses, nor for a
    set that existed before and was changed since: equal sets from before may have different tables.
    """

    def __init__(self, items: dict[Any, Value], kind: type = set, source: Source | None = None) -> None:
        self.items, self.kind, self.source = items, kind, source
        self.table: Any = kind(items)
        self.known = False
        self.calls: list[tuple[str, Sequence[_Operand]]] = []
        """Methods of ``kind``; the first of a new set makes it."""

    @classmethod
    def of(cls, t: Tracer, values: Iterable[Value], kind: type = set) -> Set:
        """The set of some values, added one by one."""
        return cls.made(kind, "", [_row(t, values)])

    @classmethod
    def made(cls, kind: type, call: str, operands: Sequence[_Operand]) -> Set:
        """The result of ``kind`` (or one of its methods, or a binary operator) of some operands."""
        made = cls({}, kind)
        tables = [o.table for o in operands]
        if call in _OPERATORS:
            made.table = _OPERATORS[call](*tables)
            made.kind = type(made.table)
        else:
            made.table = (getattr(kind, call) if call else kind)(*tables)
        made.known = True
        made._note(call, operands)
        return made

    @classmethod
    def from_value(cls, t: Tracer, items: Value | None, kind: type) -> Set:
        """``set(items)``; a frozenset of a frozenset is that one."""
        given = None if items is None else items.realize()
        if kind is frozenset and isinstance(given, Set) and given.kind is frozenset:
            return given
        return cls.made(kind, "", [] if given is None else [_operand(t, given)])

    @classmethod
    def of_its_own(cls, t: Tracer, items: Value | None) -> Set:
        """What an instance of a subclass of frozenset is: never the very frozenset that it was made of."""
        return cls.made(frozenset, "", [] if items is None else [_operand(t, items.realize())])

    def keep(self, object: frozenset) -> Set:
        """A constant: its table is that of the very object."""
        self.table, self.known = object, all(map(is_stable, object))
        return self

    def _note(self, call: str, operands: Sequence[_Operand]) -> None:
        pairs = [*self.items.items(), *(pair for o in operands for pair in o.pairs)]
        equal = dict(reversed(pairs))
        own = {id(key): value for key, value in pairs}
        self.items = {key: own[id(key)] if id(key) in own else equal[key] for key in self.table}
        self.known = self.known and all(o.known for o in operands)
        self.calls.append((call, operands))

    def change(self, t: Tracer, call: str, operands: Sequence[_Operand]) -> None:
        """Make a call that changes the set."""
        self.changed(t)
        getattr(self.kind, call)(self.table, *(o.table for o in operands))
        self._note(call, operands)

    def seen(self) -> _Operand:
        """The set as it stands, as what another is made of."""
        known = self.known and not (self.source is not None and self.mutated)
        return _Operand(self.table, list(self.items.items()), known, of=self, calls=len(self.calls))

    def parts(self) -> list[Value]:
        """All values that compiled code makes the set with."""
        return [
            *self.items.values(),
            *(value for _, operands in self.calls for o in operands for _, value in o.pairs),
            *(o.of for _, operands in self.calls for o in operands if o.of is not None),
        ]

    def type(self) -> type:
        return self.kind

    def key(self, t: Tracer) -> Any:
        if self.kind is set:
            raise t.raised(TypeError, "unhashable type: 'set'")
        return frozenset(self.items)

    def constant(self) -> Any:
        return frozenset(v.constant() for v in self.items.values()) if self.kind is frozenset else super().constant()

    def folded(self) -> Any:
        return self.kind([folded(v) for v in self.items.values()])

    def contents(self) -> Iterable[Value]:
        return self.items.values()

    def changed(self, t: Tracer, dropped: Iterable[Value] | None = None) -> None:
        """To be called before any change, with the elements that it lets go of (None: any)."""
        refuse_to_drop(self, self.items.values(), dropped)
        t.effects.note(self)

    def iterate(self, t: Tracer) -> Value:
        return SetIterator(self, self.unpack(t))

    def unpack(self, t: Tracer) -> list[Value]:
        if len(self.items) < 2 or (self.source is not None and not self.mutated):
            return list(self.items.values())
        self._check_order(t)
        return [self.items[k] for k in self.table]

    def _check_order(self, t: Tracer) -> None:
        if not self.known:
            raise Unsupported("iterating over a set: the order is the interpreter's own", "iterate over sorted(...)")
        if not all(isinstance(k, (int, float)) for k in self.items):
            t.provenance.bound_to_process("the order of a set")

    def length(self, t: Tracer) -> Value:
        return Constant(len(self.items))

    def truth(self, t: Tracer) -> bool:
        return bool(self.items)

    def contains(self, t: Tracer, item: Value) -> Value:
        item = _hashable(t, item)
        return Constant(item.realize().key(t) in self.items or is_among(t, item, self.items.values()))

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        other = other.realize()
        if not (inplace and self.kind is set and isinstance(other, Set) and operation in _IN_PLACE):
            return operated(t, operation, self, other)
        self.change(t, _IN_PLACE[operation], [other.seen()])
        return self

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        return compared(t, symbol, self, other)

    def _new(self, t: Tracer, call: str, others: Iterable[Value]) -> Set:
        return Set.made(self.kind, call, [self.seen(), *(_operand(t, other.realize()) for other in others)])

    def m_union(self, t: Tracer, *others: Value) -> Value:
        return self._new(t, "union", others)

    def m_intersection(self, t: Tracer, *others: Value) -> Value:
        return self._new(t, "intersection", others)

    def m_difference(self, t: Tracer, *others: Value) -> Value:
        return self._new(t, "difference", others)

    def m_symmetric_difference(self, t: Tracer, other: Value) -> Value:
        return self._new(t, "symmetric_difference", [other])

    def m_issubset(self, t: Tracer, other: Value) -> Value:
        return Constant(self.items.keys() <= _keys(t, other))

    def m_issuperset(self, t: Tracer, other: Value) -> Value:
        return Constant(self.items.keys() >= _keys(t, other))

    def m_isdisjoint(self, t: Tracer, other: Value) -> Value:
        return Constant(self.items.keys().isdisjoint(_keys(t, other)))

    def m_copy(self, t: Tracer) -> Value:
        return self if self.kind is frozenset else self._new(t, "copy", [])

    def m_add(self, t: Tracer, item: Value) -> Value:
        self._one(t, "add", item)
        return Constant(None)

    def m___init__(self, t: Tracer, items: Value | None = None) -> Value:
        if self.kind is frozenset:  # made by ``__new__`` alone
            return Constant(None)
        if self.items:
            self.m_clear(t)
        return Constant(None) if items is None else self.m_update(t, items)

    def m_update(self, t: Tracer, *others: Value) -> Value:
        for other in map(Value.realize, others):
            if isinstance(other, (Set, Dict, SequenceValue)):
                self.change(t, "update", [_operand(t, other)])
            else:
                for item in t.each(other):  # it may look at this set
                    self.m_add(t, item)
        return Constant(None)

    def _update(self, t: Tracer, call: str, others: Iterable[Value]) -> Value:
        self.change(t, call, [_operand(t, other.realize()) for other in others])
        return Constant(None)

    def m_intersection_update(self, t: Tracer, *others: Value) -> Value:
        return self._update(t, "intersection_update", others)

    def m_difference_update(self, t: Tracer, *others: Value) -> Value:
        return self._update(t, "difference_update", others)

    def m_symmetric_difference_update(self, t: Tracer, other: Value) -> Value:
        return self._update(t, "symmetric_difference_update", [other])

    def m_discard(self, t: Tracer, item: Value) -> Value:
        self._one(t, "discard", _hashable(t, item))
        return Constant(None)

    def _one(self, t: Tracer, call: str, item: Value) -> None:
        """``add`` or ``discard``; as ``change``, without a look at all other elements."""
        operand = _element(t, item)
        self.changed(t, [self.items[operand.table]] if call != "add" and operand.table in self.items else ())
        getattr(self.table, call)(operand.table)
        if call == "add":
            self.items.setdefault(operand.table, item)
        else:
            self.items.pop(operand.table, None)
        self.known = self.known and operand.known
        self.calls.append((call, [operand]))

    def m_remove(self, t: Tracer, item: Value) -> Value:
        if _hashable(t, item).realize().key(t) not in self.items:
            raise t.raised(KeyError, item)
        return self.m_discard(t, item)

    def m_pop(self, t: Tracer) -> Value:
        if not self.items:
            raise t.raised(KeyError, "pop from an empty set")
        if len(self.items) > 1:
            if not self.known:
                raise Unsupported("set.pop: which element comes is the interpreter's choice")
            self._check_order(t)
        self.changed(t)
        found = self.items[self.table.pop()]
        self._note("pop", [])
        return found

    def m_clear(self, t: Tracer) -> Value:
        self.change(t, "clear", [])
        return Constant(None)

    def m___contains__(self, t: Tracer, item: Value) -> Value:
        return self.contains(t, item)

    def m___len__(self, t: Tracer) -> Value:
        return self.length(t)

    def rebuild(self, r: Rebuilder) -> str:
        return self.written(r, len(self.calls))

    def written(self, r: Rebuilder, count: int) -> str:
        """A new set that went through the first ``count`` calls."""
        call, operands = self.calls[0]
        words = [_text(r, o) for o in operands]
        base = r.constant(self.kind)
        if call in _OPERATORS:
            name = r.assign(f" {call} ".join(words))
        else:
            name = r.assign(f"{base}{'.' * bool(call)}{call}({', '.join(words)})")
        self.write_changes(r, name, r.line, self.calls[1:count], 1)
        return name

    def ingredients(self, r: Rebuilder) -> str:
        """What the set was made of, as arguments."""
        return ", ".join(_text(r, operand) for operand in self.calls[0][1])

    def write_changes(
        self, r: Rebuilder, name: str, line: Callable[[str], None], calls: Sequence[Any], before: int
    ) -> None:
        """The calls that changed the set, on ``name``, that has seen ``before`` of them."""
        base = r.constant(self.kind)
        for number, (call, operands) in enumerate(calls, before):
            words = [name if o.of is self and o.calls == number else _text(r, o, line == r.effect) for o in operands]
            line(f"{base}.{call}({', '.join([name, *words])})")

    def replay(self, r: Rebuilder) -> None:
        self.write_changes(r, r.load(self), r.effect, self.calls, 0)


class SetIterator(ItemsIterator):
    """Over the elements of a set; notices that the set changed its size."""

    def __init__(self, owner: Set, items: list[Value]) -> None:
        super().__init__(items)
        self.owner, self.size = owner, len(owner.items)

    def next(self, t: Tracer) -> Value:
        if len(self.owner.items) != self.size:
            raise t.raised(RuntimeError, "Set changed size during iteration")
        return super().next(t)


def _pair(t: Tracer, value: Value) -> tuple[Any, Value]:
    return value.realize().key(t), value


def _hashable(t: Tracer, item: Value) -> Value:
    """What is looked for: in place of a set, which has no hash, the frozen one that is equal."""
    looked_for = item.realize()
    return Set.from_value(t, item, frozenset) if isinstance(looked_for, Set) and looked_for.kind is set else item


def _element(t: Tracer, item: Value) -> _Operand:
    key, value = _pair(t, item)
    return _Operand(key, [(key, value)], is_stable(key))


def _row(t: Tracer, values: Iterable[Value], form: str = "({})", make: Callable = tuple) -> _Operand:
    pairs = [_pair(t, value) for value in values]
    keys = [key for key, _ in pairs]
    return _Operand(make(keys), pairs, all(map(is_stable, keys)), form)


def _operand(t: Tracer, value: Value) -> _Operand:
    """What a method takes: sets and plain dicts are walked through by their tables."""
    if isinstance(value, Set):
        return value.seen()
    if isinstance(value, Dict) and value.kind is dict:
        return _row(t, value.keys(), "{{}}.fromkeys(({}))", dict.fromkeys)
    return _row(t, value.unpack(t))


_LIKE_SETS: tuple[type, ...] = (set, frozenset, type({}.keys()), type({}.items()))


def _side(t: Tracer, value: Value) -> _Operand | None:
    """What an operator takes: sets, and the views of dicts that are like them."""
    if isinstance(value, Set):
        return value.seen()
    if isinstance(value, DictView) and value.part != "values":
        shown = view_items(value.owner, value.part)
        if value.part == "keys":
            return _row(t, shown, "{{}}.fromkeys(({})).keys()", lambda keys: dict.fromkeys(keys).keys())
        return _row(t, shown, "dict(({})).items()", lambda keys: dict(keys).items())
    return None


def operated(t: Tracer, operation: Callable, one: Value, other: Value) -> Answer:
    """A new set, of sets and views of dicts."""
    sides = [_side(t, v.realize()) for v in (one, other)]
    if operation not in _SYMBOLS or None in sides:
        return one.not_implemented_unless(other, *_LIKE_SETS)
    return Set.made(set, _SYMBOLS[operation], sides)  # type: ignore[arg-type]


def compared(t: Tracer, symbol: str, one: Value, other: Value) -> Answer:
    """A comparison of sets and views of dicts."""
    sides = [_side(t, v.realize()) for v in (one, other)]
    if None in sides:
        return one.not_implemented_unless(other, *_LIKE_SETS)
    first, second = ({key: None for key, _ in side.pairs}.keys() for side in sides)  # type: ignore[union-attr]
    return Constant(COMPARISONS[symbol](first, second))


def _keys(t: Tracer, other: Value) -> Any:
    other = other.realize()
    return other.items.keys() if isinstance(other, Set) else {_pair(t, v)[0]: None for v in other.unpack(t)}.keys()


def _text(r: Rebuilder, operand: _Operand, late: bool = False) -> str:
    """Code for an operand; ``late``: it runs among the effects."""
    other = operand.of
    if other is None:
        names = [r.load(value) for _, value in operand.pairs]
        return names[0] if operand.form == "{}" else operand.form.format("".join(f"{n}," for n in names))
    if other.source is None:
        return r.set_as_it_was(other, operand.calls)
    if operand.calls or (late and other.calls):
        raise Unsupported("a set that was made of another one, from before, that had changed")
    return r.load(other)
