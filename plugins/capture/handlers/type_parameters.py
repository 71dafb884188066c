"""Calls of ``TypeVar``, ``ParamSpec`` and ``TypeVarTuple``, where they are written in C."""

from __future__ import annotations

import typing
from typing import Any

from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value, made_in_c
from turret.plugins.capture.values.type_parameters import TypeParameter


def type_parameter(t: Tracer, kind: Any, args: list[Value], options: dict[str, Value]) -> Value:
    """A call of a class of type parameters; names, bounds and the like are constants."""
    given, named = tuple(map(t.constant_of, args)), {name: t.constant_of(value) for name, value in options.items()}
    try:
        return TypeParameter(kind, given, named, t.call_stack.frames[-1].scope.get("__name__", "__main__"))
    except Exception as error:
        raise t.raised_from(error) from None


def _register(kind: Any) -> None:
    registry.kind(kind)(lambda t, /, *args, **options: type_parameter(t, kind, list(args), options))


for _kind in (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple):
    if made_in_c(_kind):
        _register(_kind)
