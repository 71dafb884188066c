"""``types.SimpleNamespace`` and classes that derive from it: instances whose methods are written in C."""

from __future__ import annotations

import functools
import types

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.classes import METHODS_IN_C
from turret.plugins.capture.values.objects import Instance, InstanceDict

_POSITIONAL = 1 if hasattr(types.SimpleNamespace, "__replace__") else 0
"""How many arguments ``SimpleNamespace`` takes by position: both came with one version of Python."""


def _init(t: Tracer, value: Value, /, *args: Value, **kwargs: Value) -> Value:
    """``__init__``; from Python 3.13 on it also takes a mapping, or pairs."""
    if len(args) > _POSITIONAL:
        raise Unsupported("a SimpleNamespace made of something else than keywords")
    held = {t.constant_of(name): content for given in args for name, content in t.pairs(given)}
    if not all(isinstance(name, str) for name in held):
        raise Unsupported("a SimpleNamespace of names that are no strings")
    for name, content in (held | kwargs).items():
        value.store(t, name, content)  # type: ignore[attr-defined]
    return Constant(None)


def _replace(t: Tracer, value: Value, /, **changes: Value) -> Value:
    """``__replace__``, by which ``copy.replace`` makes another one."""
    assert isinstance(value, Instance)
    made = t.call(t.wrap_known(value.kind), [], {}).realize()
    own = {name: value.own(t, name) for name in InstanceDict(value).names(t)}
    for name, content in ({n: v for n, v in own.items() if v is not None} | changes).items():
        made.store(t, name, content)  # type: ignore[attr-defined]
    return made


def _compared(symbol: str, t: Tracer, value: Value, other: Value) -> Value:
    """Namespaces are compared as their attributes are, whatever their classes; dicts have no order."""
    other = other.realize()
    if symbol not in ("==", "!=") or not issubclass(other.type(), types.SimpleNamespace):
        return Constant(NotImplemented)
    if not isinstance(value, Instance) or not isinstance(other, Instance):
        raise Unsupported(f"comparing {value.describe()} with {other.describe()}")
    return t.compare(symbol, InstanceDict(value).as_dict(t), InstanceDict(other).as_dict(t))


def _repr(t: Tracer, value: Value) -> Value:
    """``namespace(a=1)``, of constants."""
    if not isinstance(value, Instance) or value.kind is not types.SimpleNamespace:
        raise Unsupported(f"the text of {value.describe()}")
    return t.fold(_text, [InstanceDict(value).as_dict(t)], {})


def _text(attributes: dict[str, object]) -> str:
    return repr(types.SimpleNamespace(**attributes))


METHODS_IN_C[types.SimpleNamespace] = {
    "__init__": _init,
    "__repr__": _repr,
    "__replace__": _replace,
    **{
        name: functools.partial(_compared, symbol)
        for name, symbol in (
            ("__eq__", "=="), ("__ne__", "!="), ("__lt__", "<"), ("__le__", "<="), ("__gt__", ">"), ("__ge__", ">="),
        )
    },
}  # fmt: skip
