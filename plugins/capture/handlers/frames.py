"""``sys._getframe``, ``globals`` and ``locals``: compiled code has other frames, so these are answered here.

A break that made such a call for real would find the compiled code's own frame.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from typing import Any

from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.facts.fingerprints import TRUSTED_ROOTS
from turret.plugins.capture.python import resume
from turret.plugins.capture.python.instructions import LOCALS_ARE_NEW
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Answer, Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.exceptions import Traceback
from turret.plugins.capture.values.functions import Cell
from turret.plugins.capture.values.mappings import DictByKey


class FrameObject(Value):
    """A frame that is under way, ``depth`` of them behind the root."""

    def __init__(self, frame: Any, depth: int) -> None:
        self.frame, self.depth = frame, depth

    def type(self) -> type:
        return types.FrameType

    def get_attr(self, t: Tracer, name: str) -> Value:
        under_way = t.call_stack.frames
        if self.depth >= len(under_way) or under_way[self.depth] is not self.frame:
            raise Unsupported("a frame that has returned", step=NOWHERE)
        if name == "f_code" and not resume.is_resume(self.frame.code):
            return t.wrap_known(self.frame.code)
        if name == "f_lineno":
            return Constant(self.frame.line())
        if name == "f_globals":
            return _globals_of(t, self.frame)
        if name == "f_back":
            return _caller(t, self.depth)
        raise Unsupported(f"attribute {name!r} of a frame", step=NOWHERE)

    def truth(self, t: Tracer) -> bool:
        return True

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        raise Unsupported("a comparison of frames", step=NOWHERE)


def _caller(t: Tracer, depth: int) -> Value:
    """The frame that called the one at ``depth``.

    What calls a function of the program may be something of torch's that capture does without following it; whatever
    calls the standard library's own is followed.
    """
    root = str(t.call_stack.frames[depth].scope.get("__name__")).partition(".")[0]
    if depth == 0 or root not in TRUSTED_ROOTS or root in ("torch", "turret"):
        raise Unsupported("the frame of a caller", step=NOWHERE)
    return FrameObject(t.call_stack.frames[depth - 1], depth - 1)


@registry.function(sys._getframe)
def get_frame(t: Tracer, number: Value | None = None) -> Value:
    depth = len(t.call_stack.frames) - 1
    found: Value = FrameObject(t.call_stack.frames[depth], depth)
    for _ in range(0 if number is None else t.int_of(number)):
        assert isinstance(found, FrameObject)
        found = _caller(t, found.depth)
    return found


@registry.function(locals)
def local_variables(t: Tracer) -> Value:
    """A dict of the variables that are bound; up to 3.12 a frame has one, which each call brings up to date."""
    frame = t.call_stack.frames[-1]
    if resume.is_resume(frame.code) or not frame.code.co_flags & inspect.CO_OPTIMIZED:
        raise Unsupported("locals() behind a graph break, or in the body of a class", step=NOWHERE)
    known: Value | None = frame.variables
    found = t.new_dict({}) if known is None else known
    if not LOCALS_ARE_NEW:
        frame.variables = found
    for name, held in zip(frame.decoded.slots, frame.locals, strict=True):
        value = held.get(t) if isinstance(held, Cell) else held
        if value is not None:
            found.set_item(t, Constant(name), value)
        elif known is not None:
            found.call_method(t, "pop", [Constant(name), Constant(None)], {})
    return found


def get_module_of_frame(t: Tracer, depth: Value | None = None) -> Value:
    """``sys._getframemodulename``, by which ``typing`` knows from 3.12 on who calls it."""
    found = get_frame(t, depth)
    assert isinstance(found, FrameObject)
    return t.wrap_known(found.frame.scope.get("__name__"))


if (_of_frame := getattr(sys, "_getframemodulename", None)) is not None:
    registry.function(_of_frame)(get_module_of_frame)


class Globals(DictByKey):
    """The global variables of a frame, as the dict that they are in."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def name(self, t: Tracer, key: Value) -> str:
        name = t.constant_of(key)
        if not isinstance(name, str):
            raise Unsupported("a key of globals() that is no text")
        return name

    def find(self, t: Tracer, key: Value) -> Value | None:
        name, scope = self.name(t, key), self.frame.scope
        stored = t.effects.global_value(scope, name)
        if stored is not None or t.effects.global_deleted(scope, name):
            return stored
        if name in scope:
            return t.namespaces.member(scope, self.frame.scope_source, name)
        t.guards.take("NO_KEY", self.frame.scope_source, name)
        return None

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        t.effects.set_global(self.frame.scope, self.name(t, key), value)

    def del_item(self, t: Tracer, key: Value) -> None:
        self.get_item(t, key)
        t.effects.set_global(self.frame.scope, self.name(t, key), None)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        raise Unsupported("a comparison of globals()")

    def rebuild(self, r: Rebuilder) -> str:
        return r.source(self.frame.scope_source)

    def describe(self) -> str:
        return "globals()"


@registry.function(globals)
def global_variables(t: Tracer) -> Value:
    return _globals_of(t, t.call_stack.frames[-1])


def _globals_of(t: Tracer, frame: Any) -> Value:
    """The same value for the same dict."""
    if id(frame.scope) not in t.objects:
        t.remember(frame.scope, Globals(frame))
    found = t.objects[id(frame.scope)]
    if not isinstance(found, Globals):
        raise Unsupported("globals() beside another way to the dict")
    return found


@registry.function(traceback.clear_frames)
def clear_frames(t: Tracer, /, tb: Value) -> Value:
    """Nothing to do for frames that were followed: what they held is gone where compiled code does not need it."""
    entry = tb.realize()
    while isinstance(entry, Traceback):
        entry = entry.inner.realize()
    if not t.is_none(entry):
        raise Unsupported("traceback.clear_frames of frames from before the call")
    return Constant(None)
