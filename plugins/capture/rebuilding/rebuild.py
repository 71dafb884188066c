"""Rebuilt code: one Python function that calls the graph, makes the frame's values again, replays side effects, and
returns or goes on in a resume function.  Printed as source, it is what a reader sees of a compiled frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import fx

from turret.frames import frame_hook
from turret.frames.sources import AttrSource, ItemSource, References, Source, SourceWriter, WeakSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python.lookups import is_empty
from turret.plugins.capture.values.base import Constant, Lazy, Tracer, Unread, Value
from turret.plugins.capture.values.functions import Known


class FrameRebuilder:
    """Collects the lines of the function, in parts: sources, the graph's call, values, effects, what needs these."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.scope: dict[str, Any] = {}
        self.writer = SourceWriter(self.scope)
        self.scope["dereference"] = frame_hook.load().dereference
        self.names: dict[int, str] = {}
        self.sets: dict[tuple[int, int], str] = {}
        self.outputs: dict[fx.Node, int] = {}
        self.parameters: set[fx.Node] = set()
        """Outputs that are parameters, made in compiled code."""
        self.body: list[str] = []
        self.effects: list[str] = []
        self.after: list[str] = []
        self.kept: list[Value] = []
        self.loads: Counter[int] = Counter()
        self.variables: Counter[int] = Counter()
        """How often each value was asked for, and of these how often as a variable or stack entry at a break."""
        self.building: set[int] = set()

    # What values call.

    def constant(self, value: Any) -> str:
        return self.writer.constant(value)

    def source(self, source: Source) -> str:
        return self.writer.load(source)

    def fresh(self) -> str:
        return self.writer.fresh()

    def assign(self, expression: str) -> str:
        name = self.fresh()
        self.body.append(f"{name} = {expression}")
        return name

    def line(self, text: str) -> None:
        self.body.append(text)

    def effect(self, text: str) -> None:
        self.effects.append(text)

    def after_effects(self, text: str) -> None:
        """A line that needs objects from before as the effects leave them."""
        self.after.append(text)

    def remember(self, value: Value, name: str) -> str:
        """Give a value its name before its parts are made, so that cycles end."""
        self.names[id(value)] = name
        self.kept.append(value)
        return name

    def output(self, value: Any) -> str:
        """A value of the graph, by its position among the graph's outputs."""
        number = self.outputs.setdefault(self.t.recorder.node_here(value.node), len(self.outputs))
        return self.assign(f"o[{number}]")

    def load(self, value: Value) -> str:
        """The variable or expression that holds a value."""
        self.loads[id(value)] += 1
        found = self.names.get(id(value))
        if found is not None:
            return found
        if isinstance(value, Unread):
            name = value.rebuild(self)
        elif isinstance(value, Lazy):
            name = self.handed_on(value.source) if value.made is None else self.load(value.made)
        elif isinstance(value, (Constant, Known)):
            name = value.rebuild(self)
        elif getattr(value, "made_here", False):
            raise Unsupported("a module that was made in compiled code and leaves it")
        elif value.source is not None:
            name = self.source(value.source)
        else:
            if id(value) in self.building:
                raise Unsupported(f"{value.describe()} contains itself")
            self.building.add(id(value))
            name = value.rebuild(self)
            self.building.discard(id(value))
        return self.remember(value, name)

    def set_as_it_was(self, value: Any, calls: int) -> str:
        """A set of the compiled code's own, that went through the first calls of a set that the frame made."""
        if (id(value), calls) not in self.sets:
            self.sets[id(value), calls] = value.written(self, calls)
        return self.sets[id(value), calls]

    def handed_on(self, source: Source) -> str:
        """The variable of a value that was not looked at; where it is missing, the error is Python's to raise."""
        match source:
            case ItemSource(base, str() as key):
                self.t.guards.take("HAS_KEY", base, key)
            case AttrSource(_, "cell_contents"):
                self.t.guards.take("CALL", source.base, (is_empty, False))
        return self.source(source)

    def fill_payload(self, payload: Any, name: str) -> None:
        """Put items into a new instance of a subclass of a container, by the container's own methods."""
        base = self.constant(payload.kind)
        if getattr(payload, "maxlen", None) is not None:
            self.line(f"{base}.__init__({name}, (), {payload.maxlen})")
        if hasattr(payload, "factory"):
            if payload.factory is not None:
                self.line(f"{base}.__init__({name}, {self.load(payload.factory)})")
            for key, item in payload.items.values():
                self.line(f"{base}.__setitem__({name}, {self.load(key)}, {self.load(item)})")
        elif isinstance(payload.items, dict):
            payload.write_changes(self, name, self.line, payload.calls[1:], 1)
        else:
            for item in payload.items:
                self.line(f"{base}.append({name}, {self.load(item)})")

    def replay_attributes(self, value: Known) -> None:
        """Attributes set on a function or class, past a metaclass that was followed."""
        setter = type.__setattr__ if isinstance(value.object, type) else setattr
        for (owner, name), content in self.t.effects.attributes.items():
            if owner == id(value.object):
                self.effect(f"{self.constant(setter)}({self.load(value)}, {name!r}, {self.load(content)})")

    # The function.

    def arguments(self, inputs: Sequence[Source]) -> str:
        """The arguments of the graph's call; parameters and buffers that are known weakly are gathered in one step."""
        given = [self.source(s) for s in inputs if not isinstance(s, WeakSource)]
        if len(given) == len(inputs):
            return ", ".join(given)
        numbers = iter(range(len(given)))
        gathered = References(s.reference if isinstance(s, WeakSource) else next(numbers) for s in inputs)
        return f"*dereference({self.constant(gathered)}, ({''.join(v + ', ' for v in given)}))"

    def text(
        self,
        parameters: int,
        inputs: Sequence[Source],
        tail: Sequence[str],
        calls_graph: bool,
        again: bool,
        writes: bool,
        draws: Sequence[str] | None = None,
    ) -> str:
        """Source of the whole function.

        ``again``: where the graph raises, the frame runs as Python, if it has not changed its inputs (``writes``), with
        random numbers as they were on the host and on devices (``draws``, if not None).
        """
        arguments = self.arguments(inputs)
        given = [f"a{n}" for n in range(parameters)]
        lines = [*self.writer.weak_lines(), *self.writer.lines]
        if calls_graph and again:
            if draws is not None:
                lines.append(f"states = random_states({tuple(draws)})")
            lines += ["failure = None", f"try: o = graph({arguments})", "except Exception as error: failure = [error]"]
            values, states = "".join(a + ", " for a in given), "" if draws is None else ", states"
            lines.append(f"if failure is not None: return rerun(failure, f, ({values}), {writes}{states})")
        elif calls_graph:
            lines.append(f"o = graph({arguments})")
        lines += [*self.body, *self.effects, *self.after, *tail]
        head = ", ".join(["f", *given])
        return f"def compiled({head}):\n  " + "\n  ".join(lines) + "\n"
