"""Dates, times and decimal numbers: immutable objects that are assumed to stay, and computed with while capturing.

One that was seen to change is left to Python, as is what reads the clock or the local time zone.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from turret.frames.sources import BoundSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Opaque, Tracer, Value
from turret.plugins.capture.values.outside_iterators import is_behind_break
from turret.plugins.capture.values.symbols import Symbolic

_KINDS: tuple[type, ...] = (
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
)  # fmt: skip
_OF_CLASSES: tuple[Any, ...] = (
    datetime.datetime.fromisoformat, datetime.datetime.combine, datetime.datetime.fromordinal,
    datetime.date.fromisoformat, datetime.date.fromordinal, datetime.time.fromisoformat,
)  # fmt: skip
"""Class methods that read nothing but their arguments."""
_LOCAL: tuple[Any, ...] = (datetime.datetime.timestamp, datetime.datetime.astimezone)
"""Methods that ask for the local time zone where an object has none."""
_FORMATS: tuple[Any, ...] = (datetime.datetime.strftime, datetime.date.strftime, datetime.time.strftime)


def _from_before(t: Tracer, object: Any, source: Source) -> Value:
    text = lookups.text_of_type(object)
    plain = isinstance(getattr(object, "tzinfo", None), (datetime.timezone, type(None)))
    if not plain or is_behind_break(t, source):  # what Python computes there is another one each time
        return _left_to_python(t, object, source)
    if not isinstance(source, BoundSource):
        if t.policy.changing_scalar(source, float(hash(text) & _BITS)):
            return _left_to_python(t, object, source)
        t.guards.take("CALL", source, (lookups.text_of_type, text))
    return _made(t, object)


_BITS = (1 << 48) - 1


def _left_to_python(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, type(object))
    return Opaque(object, source)


def _made(t: Tracer, object: Any) -> Value:
    if type(object) is decimal.Decimal:
        _assume_context(t)
    return Constant(object)


def _assume_context(t: Tracer) -> None:
    """The context that decimal numbers are computed in, of this thread."""
    found = lookups.decimal_settings(decimal)
    t.guards.take("CALL", BoundSource("decimal", decimal), (lookups.decimal_settings, found))


def _new(kind: type) -> Any:
    def make(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if any(isinstance(v.realize(), Symbolic) for v in (*args, *kwargs.values())):
            raise Unsupported(f"a {kind.__name__} of a number that changes")
        return t.fold(kind, list(args), kwargs)

    return make


def _folded(function: Any) -> Any:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        return t.fold(function, list(args), kwargs)

    return handler


def _local(function: Any) -> Any:
    def handler(t: Tracer, /, moment: Value, *args: Value, **kwargs: Value) -> Value:
        if t.constant_of(moment).tzinfo is None or (not args and function is datetime.datetime.astimezone):
            raise Unsupported(f"datetime.{function.__name__} in the local time zone")
        return t.fold(function, [moment, *args], kwargs)

    return handler


def _formatted(function: Any) -> Any:
    def handler(t: Tracer, /, moment: Value, format: Value) -> Value:
        if "%s" in t.constant_of(format):
            raise Unsupported("seconds since the epoch in the local time zone")
        return t.fold(function, [moment, format], {})

    return handler


for _kind in _KINDS:
    registry.wrappers[_kind], registry.makers[_kind], registry.classes[_kind] = _from_before, _made, _new(_kind)
registry.pure_owners.extend(_KINDS)
for _function in _OF_CLASSES:
    registry.functions[_function] = _folded(_function)
for _function in _LOCAL:
    registry.functions[_function] = _local(_function)
for _function in _FORMATS:
    registry.functions[_function] = _formatted(_function)
