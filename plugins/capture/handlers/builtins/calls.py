"""What is called, what is handled, and what cannot be followed: ``callable``, ``sys.exc_info``, ``eval``, ``print``."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from turret.frames import frame_hook
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Opaque, Tracer, Unread, Value
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.exceptions import caught
from turret.plugins.capture.values.functions import Method, Partial
from turret.plugins.capture.values.sequences import Tuple


@registry.function(callable)
def callable_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Opaque):
        return Constant(callable(value.object))
    return Constant(look_up(t, value.type(), "__call__")[0] is not None)


@registry.function(sys.exc_info)
def exc_info(t: Tracer) -> Value:
    handled = t.call_stack.handled()
    if handled is None:
        unknown = Unread("sys.exc_info() of what the caller handles", t.call_stack.step)
        return Tuple([unknown, unknown, unknown])
    return Tuple([t.wrap_known(handled.type()), handled, caught(handled).traceback(t)])


@registry.function(sys.exception)
def exception(t: Tracer) -> Value:
    return t.call_stack.handled() or Unread("sys.exception() of what the caller handles", t.call_stack.step)


@registry.function(eval)
def evaluate(t: Tracer, source: Value, /, *scope: Value) -> Value:
    """An expression without names, which looks at no scope."""
    text = source.realize()
    if scope or not isinstance(text, Constant) or not isinstance(text.value, str) or not _names_nothing(text.value):
        raise Unsupported("input or output, or code made while running")
    return t.fold(_evaluated, [text], {})


def _names_nothing(text: str) -> bool:
    """Whether a text is an expression of literals alone, without functions of its own."""
    try:
        code = compile(text.lstrip(" \t"), "<string>", "eval")
    except (SyntaxError, ValueError):
        return False
    return not code.co_names and not any(isinstance(part, types.CodeType) for part in code.co_consts)


def _evaluated(text: str) -> Any:
    return eval(text, {})


@registry.function(print, input, open, breakpoint, exec, compile)
def outside(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("input or output, or code made while running")


@registry.function(frame_hook.load().throw)
def throw(t: Tracer, error: Value) -> Value:
    """How a resume function goes on where the instruction that ran as Python raised."""
    exception = t.exception_of(error)
    exception.settled = exception.is_traced = True
    raise Raised(exception)


@registry.kind(types.MethodType)
def method(t: Tracer, function: Value, owner: Value, /) -> Value:
    return Method(function.realize(), owner)


@registry.kind(functools.partial)
def partial(t: Tracer, function: Value, /, *args: Value, **kwargs: Value) -> Value:
    """A partial of a partial without attributes of its own calls what that calls."""
    called = function.realize()
    if not t.truth(callable_(t, called)):
        raise t.raised(TypeError, "the first argument must be callable")
    if isinstance(called, Partial) and called.is_flattened(t):
        return Partial(called.function, [*called.args, *args], {**called.kwargs, **kwargs})
    return Partial(called, list(args), kwargs)
