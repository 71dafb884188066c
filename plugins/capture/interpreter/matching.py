"""What patterns of ``match`` ask of a subject."""

from __future__ import annotations

from turret.plugins.capture.errors import Raised
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.sequences import Tuple

_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""Flags of classes: ``Py_TPFLAGS_SEQUENCE`` and ``Py_TPFLAGS_MAPPING``."""
_WHOLE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
"""Classes whose one positional pattern is for the subject itself."""


def is_sequence(value: Value) -> bool:
    """Whether ``case [...]`` takes a value apart."""
    return bool(value.type().__flags__ & _SEQUENCE)


def is_mapping(value: Value) -> bool:
    """Whether ``case {...}`` takes a value apart."""
    return bool(value.type().__flags__ & _MAPPING)


def match_class(t: Tracer, subject: Value, kind: Value, count: int, names: tuple[str, ...]) -> Value:
    """``case Kind(...)`` with ``count`` patterns by position and others by ``names``: what they get, or None."""
    cls = kind.constant()
    if not issubclass(subject.type(), cls):
        return Constant(None)
    positional: list[str] = []
    if count:
        if cls in _WHOLE and count == 1:
            return Tuple([subject, *(t.get_attr(subject, n) for n in names)])
        positional = list(getattr(cls, "__match_args__", ())[:count])
    found: list[Value] = []
    for name in (*positional, *names):
        try:
            found.append(subject.get_attr(t, name))
        except Raised as raised:
            if not issubclass(raised.value.type(), AttributeError):
                raise
            return Constant(None)
    return Tuple(found)
