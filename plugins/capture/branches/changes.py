"""What a side of an ``if`` changes of lists, dicts, objects and closure cells from before it, and warnings that it
gives: taken back, as the other side is followed from the same state, and put together behind the ``cond``."""

from __future__ import annotations

from typing import Any

import attrs

from turret.plugins.capture.branches.merging import Apart, Merger, Place, TooEarly
from turret.plugins.capture.branches.watched import Watched
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.effects import LaterCall
from turret.plugins.capture.values.base import Constant, Tracer, Value, existed
from turret.plugins.capture.values.functions import Cell, Known
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.objects import DELETED, Instance
from turret.plugins.capture.values.sequences import List
from turret.plugins.capture.values.sets import Set

_HELD: dict[type, str] = {List: "items", Dict: "items", Instance: "stores", Cell: "content"}
"""By kind of value, the attribute that what the program changes of it lies in."""


_REMOVING = ("discard", "difference_update", "__isub__")
"""Methods of sets that make no difference at all where no element is gone behind them."""


def _held_by(value: Value) -> str | None:
    """The attribute that holds what can be put together of two sides; None for values of other kinds."""
    if getattr(value, "holder", None) is not None or getattr(value, "payload", None) is not None:
        return None
    return next((name for kind, name in _HELD.items() if isinstance(value, kind)), None)


def _copied(held: Any) -> Any:
    return held.copy() if isinstance(held, (list, dict)) else held


@attrs.define(eq=False)
class Change:
    """A value that a side changes: what it held before, and behind the side."""

    value: Value
    name: str
    """Of the attribute that holds it."""
    was_changed: bool
    before: Any
    after: Any = None


class Changes:
    """Of one side, what it changes; noted from when this is made until it is taken back."""

    def __init__(self, t: Tracer, watched: Watched) -> None:
        self.t, self.watched = t, watched
        self.found: dict[int, Change] = {}
        self.sets: dict[int, tuple[Set, dict[Any, Value], bool, int, bool]] = {}
        self.calls: list[LaterCall] = []
        effects = t.effects
        self.known = set(effects.changed)
        self.held_before, self.later = len(effects.held_before), len(effects.later)
        effects.journals.append(self.note)

    def note(self, value: Value) -> None:
        """Told of a change ahead of it."""
        made_within = not existed(value) and id(value) not in self.watched.values
        if id(value) in self.found or made_within or any(value is cell for cell, _ in self.watched.cells):
            return
        name = _held_by(value)
        if type(value) is Set and getattr(value, "holder", None) is None:
            self.sets.setdefault(id(value), (value, value.items, value.known, len(value.calls), value.mutated))
            return
        if name is None:
            raise Unsupported(f"a branch on data of which a side changes {value.describe()}")
        self.found[id(value)] = Change(value, name, value.mutated, _copied(getattr(value, name)))

    def take_back(self) -> None:
        """Bring all that was changed to what it was."""
        effects = self.t.effects
        effects.journals.remove(self.note)
        for change in self.found.values():
            change.after = _copied(getattr(change.value, change.name))
            self.put(change.value, change.name, change.before)
            self.forget(change.value, change.was_changed)
        for value, items, known, calls, was_changed in self.sets.values():
            if value.items.keys() != items.keys() or any(call not in _REMOVING for call, _ in value.calls[calls:]):
                raise Unsupported(f"a branch on data of which a side changes {value.describe()}")
            value.items, value.known = items, known
            del value.calls[calls:]  # that made no difference
            self.forget(value, was_changed)
        del effects.held_before[self.held_before :]
        self.calls = effects.later[self.later :]
        del effects.later[self.later :]

    def forget(self, value: Value, was_changed: bool) -> None:
        """Have a value count as unchanged, if it was unchanged ahead of the side."""
        if not was_changed and value.mutated:
            value.mutated = False
        if id(value) not in self.known:
            self.t.effects.changed.pop(id(value), None)

    @staticmethod
    def put(value: Value, name: str, content: Any) -> None:
        """Have a value hold something else; its containers stay the objects that they are."""
        held = getattr(value, name)
        if isinstance(held, list):
            held[:] = content
        elif isinstance(held, dict):
            held.clear()
            held.update(content)
        else:
            setattr(value, name, content)


class MergedChanges:
    """The changes of both sides, as those of the one that runs."""

    def __init__(self, t: Tracer, merger: Merger, one: Changes, other: Changes) -> None:
        self.t, self.merger = t, merger
        self.values: list[tuple[Value, str, Any]] = []
        """Of each value that is changed, the attribute, and a place for each part of it."""
        for number in {**one.found, **other.found}:
            known = one.found.get(number) or other.found[number]
            sides = [c.found[number].after if number in c.found else known.before for c in (one, other)]
            self.values.append((known.value, known.name, self.places(known.value, *sides)))
        self.calls = [(call, self.parts(call, n), n) for n, side in enumerate((one, other)) for call in side.calls]

    def places(self, value: Value, one: Any, other: Any) -> Any:
        """For what both sides have a value hold, the places of what it holds behind them."""
        what = f"a branch on data of which a side changes {value.describe()} that was made ahead of it"
        place = self.merger.place
        if isinstance(value, Cell):
            return place(one, other)
        if len(one) != len(other) and not isinstance(value, Instance):
            raise TooEarly(f"{what}, to another length")
        if isinstance(value, List):
            return [place(a, b) for a, b in zip(one, other, strict=True)]
        if isinstance(value, Dict):
            if list(one) != list(other):
                raise TooEarly(f"{what}, to other keys")
            return {k: (held, place(v, other[k][1])) for k, (held, v) in one.items()}
        assert isinstance(value, Instance)
        return self.attributes(value, one, other, what)

    def attributes(
        self, value: Instance, one: dict[str, Value], other: dict[str, Value], what: str
    ) -> dict[str, Place]:
        """The places of attributes that both sides, or one of them, have set."""
        both = [n for n in one if n in other]
        if both != [n for n in other if n in one] or DELETED in one.values() or DELETED in other.values():
            raise Unsupported(f"{what}, whose attributes come in another order or are deleted")
        names = {**one, **other}
        return {n: self.merger.place(*(self.attribute(value, side, n) for side in (one, other))) for n in names}

    def attribute(self, value: Instance, stores: dict[str, Value], name: str) -> Value:
        found = stores.get(name) or value.own(self.t, name)
        if found is None:
            raise TooEarly(f"a branch on data of which one side alone sets {name!r} of {value.describe()}")
        return found

    def parts(self, call: LaterCall, side: int) -> list[tuple[Place, bool]]:
        """The conditions of a call that is made behind the graph, but for that of the side itself."""
        plain = all(isinstance(v, (Constant, Known)) for v in (*call.args, *call.kwargs.values()))
        if call.result is not None or not plain:
            raise Unsupported("a branch on data of which a side changes what is called behind the graph")
        self.merger.needs_flag = True
        try:
            return [(self.merger.packed(flag, side), truth) for flag, truth in call.conditions]
        except Apart as reason:
            raise Unsupported(f"a branch on data: {reason}") from None

    def apply(self, results: list[Value]) -> None:
        """Make the changes."""
        effects = self.t.effects
        for value, name, places in self.values:
            effects.note(value)
            if isinstance(value, Dict):
                Changes.put(value, name, {k: (held, place(results)) for k, (held, place) in places.items()})
            elif isinstance(places, dict):
                Changes.put(value, name, {k: place(results) for k, place in places.items()})
            elif isinstance(places, list):
                Changes.put(value, name, [place(results) for place in places])
            else:
                Changes.put(value, name, places(results))
        for call, conditions, side in self.calls:
            found = [(self.merger.flag, side == 0), *((place(results), truth) for place, truth in conditions)]
            effects.later.append(attrs.evolve(call, conditions=found))
