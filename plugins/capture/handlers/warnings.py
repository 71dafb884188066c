"""Warnings of whole graphs: given after the graph, unless the program ignores them in a block of its own."""

from __future__ import annotations

import re
import warnings

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.record.effects import LaterCall
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.functions import Handler
from turret.plugins.capture.values.objects import Instance


def _only_in_whole_graphs(t: Tracer, what: str) -> None:
    if not t.policy.data_dependent:
        raise Unsupported(what)


@registry.function(warnings.warn)
def warn(
    t: Tracer,
    /,
    message: Value,
    category: Value | None = None,
    stacklevel: Value | None = None,
    *others: Value,
    **named: Value,
) -> Value:
    """A warning of a whole graph is given after it, of the line that gave it."""
    _only_in_whole_graphs(t, "a warning")
    text = t.constant_of(message)
    cls = UserWarning if category is None or t.is_none(category) else t.constant_of(category)
    if not any(issubclass(cls, kind) and re.match(start, text, re.I) for level in t.ignored for kind, start in level):
        if t.state.records_warnings():
            raise Unsupported("a warning that the program records")
        level = 1 if stacklevel is None else max(t.int_of(stacklevel), 1)
        t.effects.later.append(_given_later(t, [Constant(text), t.wrap_known(cls)], level))
    return Constant(None)


def _given_later(t: Tracer, warning: list[Value], level: int) -> LaterCall:
    """A warning at a line of the frame that is ``level`` frames up, from 1; of callers' frames after the graph."""
    place = len(t.call_stack.frames) - level
    if place < 0:
        return LaterCall(warnings.warn, [*warning, Constant(1 - place)])
    frame = t.call_stack.frames[place]
    where = [Constant(frame.code.co_filename), Constant(frame.line()), Constant(frame.scope)]
    return LaterCall(lookups.warn_at, [*warning, *where])


class CaughtWarnings(Instance):
    """A block under ``warnings.catch_warnings()``, in which the program may ignore warnings.

    ``records``: the block starts with a list for its warnings.  It stays empty: what gives one breaks the graph.
    """

    def __init__(self, records: bool) -> None:
        super().__init__(warnings.catch_warnings)
        self.records, self.entered = records, False

    def special(self, t: Tracer, name: str) -> Value | None:
        step = {"__enter__": self.enter, "__exit__": self.leave}.get(name)
        return super().special(t, name) if step is None else Handler(f"catch_warnings.{name}", step)

    def enter(self, t: Tracer) -> Value:
        """The block begins."""
        self.entered = True
        t.ignored.append([])
        if not self.records:
            return Constant(None)
        t.state.record_warnings()
        return t.new_list([])

    def leave(self, t: Tracer, *exception: Value) -> Value:
        """The block ends."""
        t.ignored.pop()
        if self.records and t.state.recorded_warnings():
            raise Unsupported("a warning that the program records")
        return Constant(None)

    def rebuild(self, r: Rebuilder) -> str:
        if self.entered:
            raise Unsupported("a block under warnings.catch_warnings that leaves the graph")
        return r.assign(f"{r.constant(warnings.catch_warnings)}(record={self.records})")


registry.followed |= {  # of functions and classes under ``warnings.deprecated``, new in Python 3.13
    f"deprecated.__call__.<locals>.{name}" for name in ("wrapper", "__new__", "__init_subclass__")
}


@registry.kind(warnings.catch_warnings)
def catch_warnings(t: Tracer, /, *, record: Value | None = None, **options: Value) -> Value:
    _only_in_whole_graphs(t, "warnings.catch_warnings")
    if any(t.truth(v) for v in options.values()):
        raise Unsupported(f"warnings.catch_warnings with {', '.join(options)}")
    return CaughtWarnings(record is not None and t.truth(record))


@registry.function(warnings.simplefilter)
def simplefilter(t: Tracer, /, action: Value, category: Value | None = None, **options: Value) -> Value:
    return filterwarnings(t, action, None, category, **options)


@registry.function(warnings.filterwarnings)
def filterwarnings(
    t: Tracer, /, action: Value, message: Value | None = None, category: Value | None = None, **options: Value
) -> Value:
    """Within a block of the program's own, warnings may be ignored."""
    if not t.ignored or t.constant_of(action) != "ignore" or any(t.truth(v) for v in options.values()):
        raise Unsupported("a change of which warnings are given")
    start = "" if message is None else t.constant_of(message)
    t.ignored[-1].append((Warning if category is None else t.constant_of(category), start))
    return Constant(None)
