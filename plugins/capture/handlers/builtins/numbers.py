"""Numbers, and functions of them."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from turret.frames.class_members import member_owner
from turret.graph.ops.host_math import host_math
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value, spelled
from turret.plugins.capture.values.choices import Choice, extreme_of_two
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import List, Tuple
from turret.plugins.capture.values.symbols import Symbolic, as_float, as_float64, as_int, is_of_data
from turret.plugins.capture.values.tensors import Array, Tensor


@registry.function(polyfills.total)
def total(t: Tracer, *args: Value) -> Value:
    values = [a.realize() for a in args]
    if all(v.is_constant() for v in values):
        return t.fold(polyfills.total, values, {})
    found = t.recorder.computed(polyfills.total, values)
    return functools.reduce(lambda a, b: t.binary(operator.add, a, b), values) if found is None else found


def _have_one_extreme(values: list[Value]) -> bool:
    """Whether torch's symbol for the larger of numbers is Python's, as it is of ints alone."""
    symbolic = any(isinstance(v, Symbolic) for v in values)
    return len(values) > 1 and symbolic and all(isinstance(v, (Symbolic, Constant)) and v.type() is int for v in values)


def _with_one_constant(function: Callable, values: list[Value]) -> list[Value]:
    """Numbers of which the constants are replaced by what the function gives of them."""
    known = [v.constant() for v in values if v.is_constant()]
    return [*(v for v in values if not v.is_constant()), *([Constant(function(known))] if known else [])]


def _extreme(symbol: str, replacement: Any, symbolic: Any) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        values = [a.realize() for a in args]
        if len(values) == 1 and not kwargs:
            items = values[0].unpack(t)
            values = items if len(items) > 1 else [t.new_tuple(items)]
        function = min if symbol == "<" else max
        if not kwargs and (computed := t.recorder.computed(function, values)) is not None:
            return computed
        if not kwargs and _have_one_extreme(values):
            numbers = _with_one_constant(function, values)
            return functools.reduce(lambda a, b: t.recorder.call(symbolic, [a, b], {}), numbers)
        chosen = extreme_of_two(t, symbol, *values) if len(values) == 2 and not kwargs else None
        return t.call(t.wrap_known(replacement), values, kwargs) if chosen is None else chosen

    return handler


registry.functions[min] = _extreme("<", polyfills.min_, torch.sym_min)
registry.functions[max] = _extreme(">", polyfills.max_, torch.sym_max)


@registry.kind(bool)
def bool_(t: Tracer, value: Value | None = None) -> Value:
    known = None if value is None else value.realize()
    if isinstance(known, Tensor):
        known = known.read(t, "item") or known
    if isinstance(known, Symbolic) and not known.is_known():
        return known if known.type() is bool else t.compare("!=", known, Constant(0))
    return Constant(False if value is None else t.truth(value))


def _number(cls: type, convert: Callable[[Tracer, Symbolic], Value], method: str) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        value = args[0].realize() if args else None
        if len(args) > 1 and cls is int and not issubclass(value.type(), (str, bytes, bytearray)):  # type: ignore[union-attr]
            raise t.raised(TypeError, "int() can't convert non-string with explicit base")
        if isinstance(value, Tensor):
            return value.call_method(t, method, [], {})
        if isinstance(value, Choice) and cls is float and len(args) == 1:
            return value.to_float(t)
        if isinstance(value, Array) and (number := value.as_number(t)) is not None:
            return handler(t, number, *args[1:], **kwargs)
        if isinstance(value, Symbolic) and len(args) == 1:
            return value if value.type() is cls else convert(t, value)
        if isinstance(value, Instance):
            return value.need_special(t, method)
        return t.fold(cls, list(args), kwargs)

    return handler


registry.classes[int] = _number(int, as_int, "__int__")
registry.classes[float] = _number(float, as_float, "__float__")
registry.classes[complex] = lambda t, /, *args, **kwargs: t.fold(complex, list(args), kwargs)


@registry.function(abs)
def abs_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Tensor):
        patched = value.patched(t, "__abs__")
        return t.recorder.call_method("abs", [value], {}) if patched is None else t.call(patched, [], {})
    if isinstance(value, Symbolic):
        return t.recorder.call(abs, [value], {})
    if isinstance(value, (Array, Choice)):
        return value.unary(t, abs)
    if isinstance(value, Instance):
        return value.need_special(t, "__abs__")
    return t.fold(abs, [value], {})


@registry.function(pow)
def pow_(t: Tracer, base: Value, exponent: Value, *modulus: Value) -> Value:
    if modulus:
        return t.fold(pow, [base, exponent, *modulus], {})
    return t.binary(operator.pow, base, exponent)


@registry.function(divmod)
def divmod_(t: Tracer, left: Value, right: Value) -> Value:
    left, right = left.realize(), right.realize()
    if left.is_constant() and right.is_constant():
        return t.fold(divmod, [left, right], {})
    if any(isinstance(value, (Tensor, Instance)) for value in (left, right)):
        return _divmod_of_class(t, left, right)
    return Tuple([t.binary(operator.floordiv, left, right), t.binary(operator.mod, left, right)])


def _divmod_of_class(t: Tracer, left: Value, right: Value) -> Value:
    """``divmod`` that is up to a class; tensors have none."""
    kinds = (left.type(), right.type())
    sides = [(left, "__divmod__", right), (right, "__rdivmod__", left)]
    if kinds[0] is kinds[1]:
        sides.pop()
    elif issubclass(kinds[1], kinds[0]) and look_up(t, kinds[1], "__rdivmod__") != look_up(t, kinds[0], "__rdivmod__"):
        sides.reverse()
    for asked, name, other in sides:
        answer = asked.answer(t, name, other) if isinstance(asked, Instance) else NotImplemented
        if not isinstance(answer, types.NotImplementedType):
            return answer
        if not isinstance(asked, Instance) and getattr(asked.type(), name, None) not in _OF_PLAIN_NUMBERS:
            raise Unsupported(f"divmod() of {left.describe()} and {right.describe()}")
    operands = "'{}' and '{}'".format(*map(spelled, kinds))
    raise t.raised(TypeError, f"unsupported operand type(s) for divmod(): {operands}")


_DIVMODS = ("__divmod__", "__rdivmod__")
_OF_PLAIN_NUMBERS = {None, *(getattr(kind, name) for kind in (int, float) for name in _DIVMODS)}
"""What classes have for ``divmod`` that leave it to the other side, if that is a tensor; None: nothing."""


def _rounded(t: Tracer, number: Symbolic, digits: Value) -> Value | None:
    """``round`` of a number of data; None for digits that depend on some themselves, or are before the point."""
    if not isinstance(digits, Constant) or not (digits.value is None or type(digits.value) is int):
        return None
    if number.type() is not float:
        whole = digits.value is None or digits.value >= 0
        return (as_int(t, number) if number.type() is bool else number) if whole else None
    if digits.value is None:
        return as_int(t, number, round)
    if digits.value < 0:
        return None  # it may overflow
    given: list[Value] = [Constant("round"), List([as_float64(t, v) for v in (number, digits)])]
    return t.recorder.call_method("item", [t.recorder.call(host_math, given, {})], {})


@registry.function(round)
def round_(t: Tracer, value: Value, *digits: Value) -> Value:
    value = value.realize()
    if isinstance(value, (Tensor, Instance)) and member_owner(value.type(), "__round__") is None:
        raise t.raised(TypeError, f"type {value.type().__name__} doesn't define __round__ method")
    if isinstance(value, (Tensor, Instance)):
        return value.call_method(t, "__round__", list(digits), {})
    found = t.recorder.computed(round, [value, *digits])
    if found is None and t.policy.data_dependent and is_of_data(value) and len(digits) < 2:
        found = _rounded(t, value, digits[0].realize() if digits else Constant(None))  # type: ignore[arg-type]
    return t.fold(round, [Constant(t.constant_of(value)), *digits], {}) if found is None else found
