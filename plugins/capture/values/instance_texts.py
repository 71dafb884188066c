"""Texts made of instances by ``%`` and ``str.format``: their own methods are followed, field by field."""

from __future__ import annotations

import re
import string
import types
from collections.abc import Callable
from typing import Any

from turret.plugins.capture.python import polyfills
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.classes import Class
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import Tuple

_DIRECTIVE = re.compile(r"%([-#0 +]*\d*(?:\.\d+)?)[hlL]?([sdrifgGeExXoc%])")
_FORMATTER = string.Formatter()


def formatted(t: Tracer, method: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``text.format(...)`` with instances among its arguments; None for other calls, and such as Python may refuse."""
    if method.__name__ != "format" or not any(_is_instance(v) for v in (*args, *kwargs.values())):
        return None
    try:
        fields = tuple(_fields(method.__self__))  # type: ignore[attr-defined]
    except ValueError:
        return None
    found = [steps[0] for _, steps, _, _ in fields if steps is not None]
    if not all(first in kwargs if isinstance(first, str) else first < len(args) for first in found):
        return None
    given = [t.wrap_known(fields), t.new_tuple(args), t.new_dict(dict(kwargs))]
    return t.call(t.wrap_known(polyfills.text_of_fields), given, {})


def _fields(text: str) -> Any:
    """The fields of a text as the polyfill takes them; raises ``ValueError`` for such as have fields inside."""
    number = 0
    for before, name, spec, conversion in _FORMATTER.parse(text):
        if name is None:
            yield before, None, "", None
            continue
        if spec and "{" in spec:
            raise ValueError
        if not re.split(r"[.\[]", name)[0]:
            name, number = f"{number}{name}", number + 1
        elif number and name[0].isdigit():
            raise ValueError
        yield before, _steps(name), spec or "", conversion


def _steps(name: str) -> tuple[Any, tuple[tuple[bool, Any], ...]]:
    """What a field is called, as the argument and the steps from there."""
    first = re.split(r"[.\[]", name)[0]
    steps = re.findall(r"\.([^.\[]+)|\[([^\]]+)\]", name[len(first) :])
    keys = [(bool(attribute), attribute or (int(key) if key.isdigit() else key)) for attribute, key in steps]
    return int(first) if first.isdigit() else first, tuple(keys)


def interpolated(t: Tracer, text: Value, right: Value) -> Value | None:
    """``text % right`` with instances to the right; None for other sides, and such as Python may refuse."""
    if not isinstance(text, Constant) or type(text.value) is not str:
        return None
    right = right.realize()
    values = right.items if type(right) is Tuple else [right]
    if isinstance(right, Instance) and issubclass(right.kind, tuple):
        return None  # whose items are the values
    if not any(_is_instance(v) for v in values):
        return None
    directives = _directives(text.value)
    if directives is None:
        return None
    conversions = [conversion for _, directive, conversion in directives if directive is not None]
    if len(conversions) != len(values):
        return None
    if any(_is_instance(v) and conversion not in "sr" for v, conversion in zip(values, conversions, strict=True)):
        return None
    given = [t.wrap_known(directives), t.new_tuple(list(values))]
    return t.call(t.wrap_known(polyfills.text_of_directives), given, {})


def _directives(text: str) -> tuple[tuple[str, str | None, str], ...] | None:
    """The directives of a text as the polyfill takes them; None where some are of another kind."""
    made: list[tuple[str, str | None, str]] = []
    end = 0
    for found in _DIRECTIVE.finditer(text):
        before, end = text[end : found.start()], found.end()
        if "%" in before:
            return None
        flags, conversion = found.groups()
        if conversion == "%":
            made.append((f"{before}%", None, ""))
        else:
            made.append((before, f"%{flags}{'s' if conversion in 'sr' else conversion}", conversion))
    rest = text[end:]
    return None if "%" in rest else (*made, (rest, None, ""))


def _is_instance(value: Value) -> bool:
    """An object of which a method of its class makes the text."""
    value = value.realize()
    if isinstance(value, Class):  # of which a metaclass of the program's makes the text
        meta = type(value.object)
        return any(isinstance(getattr(meta, name), types.FunctionType) for name in ("__str__", "__repr__"))
    return isinstance(value, Instance)
