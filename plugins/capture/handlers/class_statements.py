"""Classes that the program defines while it is captured and does not look into: made where they are handed out."""

from __future__ import annotations

import builtins
import dis
import types
from typing import Any

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Rebuilder, Tracer, Value
from turret.plugins.capture.values.classes import ORDINARY_METACLASSES
from turret.plugins.capture.values.functions import Callable_, NestedFunction

_REFUSAL = "a class defined in compiled code"

_METACLASSES = {*ORDINARY_METACLASSES, type(torch.autograd.Function)}
"""Those whose classes can be made at any time, or never: nobody hears of it."""

_DECORATORS = {"staticmethod", "classmethod", "property"}

_PLAIN = {
    "RESUME", "NOP", "COPY_FREE_VARS", "MAKE_CELL", "LOAD_CONST", "LOAD_CLOSURE", "LOAD_FAST", "BUILD_TUPLE",
    "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE", "PUSH_NULL", "PRECALL", "CALL", "COPY", "STORE_NAME", "RETURN_VALUE",
    "RETURN_CONST", "STORE_FAST", "LOAD_FAST_CHECK",
}  # fmt: skip
"""Instructions of a class's body that only make functions, and take no value of a variable."""


class NewClass(Callable_):
    """A class whose body only defines methods and constants, so that it is the same whenever it is made."""

    def __init__(self, body: NestedFunction, name: str, bases: tuple[type, ...]) -> None:
        self.body, self.name, self.bases = body, name, bases

    def type(self) -> type:
        return types.prepare_class(self.name, self.bases)[0]

    def describe(self) -> str:
        return _REFUSAL

    def get_attr(self, t: Tracer, name: str) -> Value:
        raise Unsupported(_REFUSAL)

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        raise Unsupported(_REFUSAL)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported(_REFUSAL)

    def rebuild(self, r: Rebuilder) -> str:
        bases = "".join(f", {r.constant(base)}" for base in self.bases)
        return r.assign(f"{r.constant(builtins.__build_class__)}({r.load(self.body)}, {self.name!r}{bases})")


@registry.function(builtins.__build_class__)
def define_class(t: Tracer, /, body: Value, name: Value, *bases: Value, **named: Value) -> Value:
    """What a class statement calls, for classes that can be made later."""
    body = body.realize()
    known: list[Any] = [base.realize().constant() if base.is_constant() else None for base in bases]
    if named or not isinstance(body, NestedFunction) or not _only_defines(body) or not all(map(_is_silent, known)):
        raise Unsupported(_REFUSAL)
    return NewClass(body, t.constant_of(name), tuple(known))


def _is_silent(base: Any) -> bool:
    """Whether a class does not hear of a class that is derived from it."""
    return type(base) in _METACLASSES and not any("__init_subclass__" in vars(k) for k in base.__mro__[:-1])


def _only_defines(body: NestedFunction) -> bool:
    """Whether the body makes functions, decorates them by builtins, and binds names to them and to constants."""
    defined = {"__name__", *(_DECORATORS - body.scope.keys())}
    for instruction in dis.get_instructions(body.code):
        if instruction.opname == "LOAD_NAME" and instruction.argval not in defined:
            return False
        if instruction.opname != "LOAD_NAME" and instruction.opname not in _PLAIN:
            return False
    return True
