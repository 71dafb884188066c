"""Texts, bytes and patterns."""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

from turret.frames.class_members import member_owner
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value, spelled
from turret.plugins.capture.values.classes import AddressText, Class, look_up
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.number_texts import NumberText
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.tensors import Array, Tensor


@registry.function(os.fspath)
def fspath(t: Tracer, path: Value) -> Value:
    path = path.realize()
    if isinstance(path, Instance):
        return path.need_special(t, "__fspath__")
    return t.fold(os.fspath, [path], {})


registry.classes[bytes] = lambda t, /, *args, **kwargs: t.fold(bytes, list(args), kwargs)


@registry.kind(str)
def str_(t: Tracer, /, value: Value | None = None, *encoding: Value, **kwargs: Value) -> Value:
    if encoding or kwargs:
        return t.fold(str, [*([] if value is None else [value]), *encoding], kwargs)
    if value is None:
        return Constant("")
    return value if isinstance(value, NumberText) else _text(t, value.realize(), "__str__", str)


@registry.function(repr)
def repr_(t: Tracer, value: Value) -> Value:
    if isinstance(value, NumberText):
        return t.text(repr, [value], {})
    return _text(t, value.realize(), "__repr__", repr)


def _text(t: Tracer, value: Value, method: str, convert: Callable[[Any], str]) -> Value:
    if isinstance(value, Instance):
        found = value.call_special(t, method)
        if found is not None:
            return found
    if isinstance(value, Class):
        names = (method, "__repr__") if method == "__str__" else (method,)
        found = next((m for name in names if (m := value.of_program(t, name)) is not None), None)
        if found is not None:
            return t.call(found, [], {})
    if isinstance(value, Known) and not isinstance(value.object, (type, types.ModuleType, torch.dtype)):
        t.provenance.bound_to_process("a text that may hold the address of an object")
        return Constant(convert(value.constant()))
    return t.text(convert, [value], {})


for _original in (
    sys.intern, str.maketrans, bytes.maketrans, re.match, re.search, re.fullmatch, re.findall, re.split, re.subn,
    re.compile, re.escape,
):  # fmt: skip
    registry.functions[_original] = lambda t, /, *args, _o=_original, **kwargs: t.fold(_o, list(args), kwargs)


@registry.function(format)
def format_(t: Tracer, value: Value, spec: Value | None = None) -> Value:
    text = "" if spec is None else t.constant_of(spec)
    if isinstance(value, NumberText):
        return t.text(format, [value, Constant(text)], {}) if text else value
    value = _number_formatted(t, value.realize(), text)
    if isinstance(value, Instance):
        kind, owner = value.type(), member_owner(value.type(), "__format__")
        if owner in (int, float, str) and not text:
            return _text(t, value, "__str__", str)
        if owner is not object:
            return value.need_special(t, "__format__", Constant(text))
        if text:
            raise t.raised(TypeError, f"unsupported format string passed to {spelled(kind)}.__format__")
        value = _text(t, value, "__str__", str)
        if isinstance(value, AddressText):
            return value
    elif isinstance(value, Class) and not text:
        value = _text(t, value, "__str__", str)
    return t.text(format, [value, Constant(text)], {})


def _number_formatted(t: Tracer, value: Value, text: str) -> Value:
    """The number that a tensor or a scalar of numpy is formatted as; other values as they are."""
    if isinstance(value, Array) and text and issubclass(value.type(), numpy.floating):
        held = value.tensor(t, copied=True)  # numpy formats it as a float of Python's
    elif not isinstance(value, Tensor) or value.patched(t, "__format__") is not None:
        return value
    elif value.type() is torch.Tensor and value.fake.dim() == 0:
        held = value  # what ``torch.Tensor.__format__`` writes
    elif text and look_up(t, value.type(), "__format__")[0] is torch.Tensor:
        name = value.type().__name__
        raise t.raised(TypeError, f"unsupported format string passed to {name}.__format__")
    else:
        return value
    number = held.read(t, "item") if isinstance(held, Tensor) else None
    return value if number is None else number.realize()
