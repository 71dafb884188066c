"""``functools.singledispatch`` in compiled code: which function answers for a class is asked again by each call."""

from __future__ import annotations

import functools

from turret.frames.sources import BoundSource
from turret.plugins.capture.handlers.builtins.polyfilled import polyfilled
from turret.plugins.capture.python import lookups, polyfills
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.functions import Function


@registry.module("functools")
def dispatch(t: Tracer, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The implementation for a class; other functions of the module are followed."""
    asked = function.object
    if asked.__qualname__ != "singledispatch.<locals>.dispatch" or len(args) != 1 or kwargs:
        return None
    ask = functools.partial(lookups.implementation_for, t.constant_of(args[0]))
    found = ask(asked)
    t.guards.take("CALL", BoundSource(asked.__qualname__, asked), (ask, found))
    return t.wrap_known(found)


if "_method_cache" in functools.singledispatchmethod.__init__.__code__.co_names:
    polyfilled(functools.singledispatchmethod.__get__, polyfills.dispatching_method)
