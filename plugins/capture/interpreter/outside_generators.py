"""Generators of the program's that were not asked for anything yet: followed as if they were made in the frame."""

from __future__ import annotations

import inspect
import types

from turret.frames.sources import CallSource, ItemSource, Source
from turret.plugins.capture.interpreter.calls import not_followed
from turret.plugins.capture.interpreter.frame import Generator
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Opaque, Tracer, Value
from turret.plugins.capture.values.functions import LocalFunction
from turret.plugins.capture.values.outside_iterators import is_of_loop


def outside_generator(t: Tracer, object: types.GeneratorType, source: Source) -> Value:
    """A generator that is followed where it did not begin: its function and what that was given are guarded."""
    t.guards.take("TYPE", source, types.GeneratorType)
    unstarted = lookups.is_unstarted(object)
    if is_of_loop(t, source):
        return Opaque(object, source)
    t.guards.take("CALL", source, (lookups.is_unstarted, unstarted))
    function = lookups.function_of_generator(object)
    if not unstarted or function is None or not _is_followed(function):
        return Opaque(object, source)
    made_by = LocalFunction(t, function, CallSource(source, lookups.function_of_generator))
    made = t.follow(made_by, *_arguments(t, object, source))
    assert isinstance(made, Generator)
    made.source, made.object = source, object
    return made


def _is_followed(function: types.FunctionType) -> bool:
    name = function.__globals__.get("__name__") or ""
    return registry.of_function(function, name) is None and not not_followed(name)


def _arguments(t: Tracer, object: types.GeneratorType, source: Source) -> tuple[list[Value], dict[str, Value]]:
    """What the function was called with, each at its place among the generator's variables."""
    code, place = object.gi_code, CallSource(source, lookups.arguments_of_generator)
    held = lookups.arguments_of_generator(object)

    def value_of(slot: int) -> Value:
        name = code.co_varnames[slot]
        return t.wrap(held[name], ItemSource(place, name))

    count = code.co_argcount
    args = [value_of(n) for n in range(count)]
    slot = count + code.co_kwonlyargcount
    named = {code.co_varnames[n]: value_of(n) for n in range(count, slot)}
    if code.co_flags & inspect.CO_VARARGS:
        args += value_of(slot).unpack(t)
        slot += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        named |= {k.constant(): v for k, v in t.pairs(value_of(slot))}
    return args, named


registry.wrappers[types.GeneratorType] = outside_generator
