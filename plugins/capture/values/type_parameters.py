"""Type parameters that compiled code makes, each call anew: ``TypeVar``, ``ParamSpec`` and ``TypeVarTuple``.

From Python 3.12 on they are written in C, and functions have their own (``def f[T](x): ...``).
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value

_TOLD = frozenset(
    {"__name__", "__module__", "__bound__", "__constraints__", "__covariant__", "__contravariant__",
     "__infer_variance__", "__default__"}
)  # fmt: skip


class TypeParameter(Value):
    """A new type parameter; ``made`` is one like it."""

    def __init__(self, make: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any], module: str) -> None:
        self.make, self.given, self.options, self.module = make, given, options, module
        self.made = make(*given, **options)
        self.made.__module__ = module

    def type(self) -> type:
        return type(self.made)

    def key(self, t: Tracer) -> Any:
        return self

    def truth(self, t: Tracer) -> bool:
        return True

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in _TOLD and hasattr(self.made, name):
            return t.wrap_known(getattr(self.made, name))
        return super().get_attr(t, name)

    def m_has_default(self, t: Tracer) -> Value:
        return Constant(self.made.has_default())

    def rebuild(self, r: Rebuilder) -> str:
        given = [r.constant(v) for v in self.given] + [f"{k}={r.constant(v)}" for k, v in self.options.items()]
        name = r.assign(f"{r.constant(self.make)}({', '.join(given)})")
        r.line(f"{name}.__module__ = {self.module!r}")
        return r.remember(self, name)


def of_syntax(kind: type, name: str) -> Any:
    """A new one as functions have by their syntax (``def f[T]``), which is not all that a call of ``kind`` makes."""
    stars = {typing.ParamSpec: "**", typing.TypeVarTuple: "*"}.get(kind, "")
    scope: dict[str, Any] = {}
    exec(f"def generic[{stars}{name}](): pass", scope)
    return scope["generic"].__type_params__[0]
