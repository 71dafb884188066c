"""Classes that compiled code makes, each call anew: named tuples."""

from __future__ import annotations

import collections
from typing import Any

from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Rebuilder, Tracer, Value
from turret.plugins.capture.values.classes import Class


class MadeNamedTuple(Class):
    """A class that ``namedtuple`` made while capturing; one that leaves the graph is made again by each call."""

    def __init__(self, made: type, options: dict[str, Any]) -> None:
        super().__init__(made)
        self.options = options

    def rebuild(self, r: Rebuilder) -> str:
        given = ", ".join(f"{name}={r.constant(value)}" for name, value in self.options.items())
        return r.assign(f"{r.constant(collections.namedtuple)}({given})")


@registry.function(collections.namedtuple)
def namedtuple(t: Tracer, /, typename: Value, field_names: Value, **options: Value) -> Value:
    """A new class; names, and values that fields have by default, are constants."""
    frame = t.call_stack.frames[-1]
    given = {"typename": t.constant_of(typename), "field_names": t.constant_of(field_names)}
    given |= {name: t.constant_of(value) for name, value in options.items()}
    given.setdefault("module", frame.scope.get("__name__", "__main__"))
    make: Any = collections.namedtuple
    try:
        made = make(**given)
    except Exception as error:
        raise t.raised_from(error) from None
    t.provenance.bound_to_process(f"{made.__qualname__}, a class that was made in compiled code")
    value = MadeNamedTuple(made, given)
    t.remember(made, value)
    return value
