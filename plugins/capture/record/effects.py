"""Side effects on what existed before the call: noted while capturing, replayed once after the graph has run."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import torch

from turret.frames.guards import Guard
from turret.frames.sources import DictSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Rebuilder, Value, existed
from turret.plugins.capture.values.objects import held_by


@attrs.define(eq=False)
class LaterCall:
    """A call that is made once, after the graph."""

    function: Any
    args: list[Value]
    kwargs: dict[str, Value] = attrs.field(factory=dict)
    result: Value | None = None
    """Its result, where it has one: who loads that makes the call."""
    conditions: list[tuple[Value, bool]] = attrs.field(factory=list)
    """Flags of the graph, and what each has to be for the call to be made."""

    def expression(self, r: Rebuilder) -> str:
        """The call, of arguments that are loaded here."""
        words = [*map(r.load, self.args), *(f"{k}={r.load(v)}" for k, v in self.kwargs.items())]
        return f"{r.constant(self.function)}({', '.join(words)})"


class Effects:
    """What was changed, in the order of the first change; each object's final state is what gets replayed."""

    def __init__(self) -> None:
        self.changed: dict[int, Value] = {}
        self.globals: dict[tuple[int, str], tuple[dict[str, Any], Value | None]] = {}
        self.attributes: dict[tuple[int, str], Value] = {}
        self.class_changes = False
        self.later: list[LaterCall] = []
        """Calls that are made after the graph, in order: warnings, hooks of leaves."""
        self.held_before: list[tuple[Value, list[Any]]] = []
        """Containers that were changed, and the objects that each held before."""
        self.count = 0
        """Changes so far."""
        self.watched: dict[int, Value] = {}
        """New objects, by id, whose changes are counted, too: those that objects from before hold by now."""
        self.journals: list[Callable[[Value], None]] = []
        """Told of each change of an object ahead of it, for one that may have to be taken back."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.globals or self.later)

    def note(self, value: Value) -> None:
        """``value`` is about to change; new objects need no replay."""
        for journal in self.journals:
            journal(value)
        holder = getattr(value, "holder", None)
        instance = None if holder is None else holder()
        if instance is not None:
            self.note(instance)
        was_there = existed(value)
        if was_there or holder is not None:
            value.mutated = True
        if was_there or id(value) in self.watched:
            self.count += 1
        if was_there and id(value) not in self.changed:
            self.held_before.append((value, _objects_in(value)))
            self.changed[id(value)] = value

    def check_held(self, object: Any) -> None:
        """Refuse to follow a weak reference to what a change may have let go of: replayed behind the graph, it would
        let go too late."""
        if self and object is not None and _lead_to(self._let_go(), object):
            raise Unsupported("following a weak reference to what a change of the frame's may have let go of")

    def _let_go(self) -> Iterator[Any]:
        """Objects that changed containers held and do not hold any more, and what attributes and globals were."""
        for container, content in self.held_before:
            held = set(map(id, _objects_in(container)))
            yield from (object for object in content if id(object) not in held)
        for value in self.changed.values():
            object = getattr(value, "object", None)
            names = [*getattr(value, "stores", ()), *(name for at, name in self.attributes if at == id(object))]
            yield from (before[name] for name in names if name in (before := held_by(object)))
        for (_, name), (scope, _) in self.globals.items():
            yield scope.get(name)

    def attribute(self, value: Any, name: str) -> Value | None:
        """An attribute that was set on a function or class, or None."""
        return self.attributes.get((id(value.object), name))

    def set_attribute(self, value: Any, name: str, content: Value) -> None:
        """Set an attribute of a function or class."""
        self.class_changes = True
        self.count += 1
        self.changed.setdefault(id(value), value)
        self.attributes[id(value.object), name] = content

    def global_value(self, scope: dict[str, Any], name: str) -> Value | None:
        """A global that was set, or None."""
        found = self.globals.get((id(scope), name))
        return None if found is None else found[1]

    def set_global(self, scope: dict[str, Any], name: str, value: Value | None) -> None:
        """Set a global variable of a namespace (None deletes it)."""
        self.count += 1
        self.globals[id(scope), name] = (scope, value)

    def global_deleted(self, scope: dict[str, Any], name: str) -> bool:
        found = self.globals.get((id(scope), name))
        return found is not None and found[1] is None

    def reaches(self, guards: Iterable[Guard]) -> bool:
        """Whether some of these may not hold any more once the effects are replayed."""
        if self.globals or self.attributes:
            return True
        changed = {v.source: getattr(v, "stores", None) for v in self.changed.values() if v.source is not None}
        if len(changed) < len(self.changed):
            return True  # a closure cell, which no source leads to
        rest = (g for g in guards if g.kind not in ("TYPE", "ID"))
        return any(_is_changed(g, s, changed) for g in rest for s in (g.source, *g.others) if s is not None)

    def write(self, r: Rebuilder) -> None:
        """Write the replay of everything."""
        for call in self.later:
            if call.result is None:
                conditions = [r.load(flag) if truth else f"not {r.load(flag)}" for flag, truth in call.conditions]
                r.effect((f"if {' and '.join(conditions)}: " if conditions else "") + call.expression(r))
            else:
                r.load(call.result)
        for number, value in list(self.changed.items()):
            if number in self.changed:  # the replay of another stands for those of its parts
                value.replay(r)
        for (_, name), (scope, stored) in self.globals.items():
            held = r.constant(scope)
            if stored is None:
                r.effect(f"{held}.pop({name!r}, None)")
            else:
                r.effect(f"{held}[{name!r}] = {r.load(stored)}")


def _objects_in(container: Value) -> list[Any]:
    """The program's objects that a container holds as it stands."""
    return [found for v in container.contents() if (found := getattr(v, "object", None)) is not None]


def _is_changed(guard: Guard, source: Source, changed: dict[Source, Any]) -> bool:
    """Whether a guard speaks of something in an object that changes: anywhere, or in attributes that are set."""
    steps = source.steps()
    for number, step in enumerate(steps):
        if step not in changed:
            continue
        names, below = changed[step], steps[number + 1 :]
        if names is None:
            return True
        if below and isinstance(below[-1], DictSource) and len(below) == 1:
            expected = set(guard.expected) if guard.kind == "KEYS" else {guard.expected}
            return not expected.issuperset(names) if guard.kind == "KEYS" else not expected.isdisjoint(names)
        if any(getattr(s, "name", getattr(s, "key", None)) in names for s in below[:2]):
            return True
    return False


_MOST_REACHED = 2000
"""So many objects are looked through for one that others may hold."""
_APART = (type, types.ModuleType, types.FunctionType, types.CodeType, torch.Tensor)
"""What lives on by itself, or leads to nothing that its own end would let go of."""


def _lead_to(objects: Iterable[Any], wanted: Any) -> bool:
    """Whether some objects are another, or may hold it."""
    waiting, seen = list(objects), set[int]()
    while waiting:
        found = waiting.pop()
        if found is wanted or len(seen) > _MOST_REACHED:
            return True
        if id(found) not in seen and gc.is_tracked(found) and not isinstance(found, _APART):
            seen.add(id(found))
            waiting += gc.get_referents(found)
    return False
