"""What programs assert of unbacked symbols: conditions that the graph checks when it runs."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch.fx.experimental import symbolic_shapes

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic

aten = torch.ops.aten
_NO_MESSAGE = "Expected cond to be True, but got False"


@registry.function(torch._check)
def check(t: Tracer, cond: Value, message: Value | None = None) -> Value:
    text = _NO_MESSAGE
    if message is not None and not t.is_none(message):
        made = t.call(message, [], {}).realize()
        if not isinstance(made, Constant):
            raise Unsupported("a message that is not known before the graph runs")
        text = str(made.value)
    if not t.assume(cond, text):
        raise t.raised(RuntimeError, Constant(text))
    return Constant(None)


@registry.function(symbolic_shapes.expect_true)
def expect_true(t: Tracer, /, cond: Value, *_: Value, **__: Value) -> Value:
    return Constant(t.assume(cond, _NO_MESSAGE))


def _combined(operation: Any) -> Any:
    """The handler of ``sym_and`` or ``sym_or``: a condition of several, none of which is decided here."""
    return lambda t, x, *others: functools.reduce(lambda one, other: t.binary(operation, one, other), (x, *others))


for _name, _operation in (("sym_and", operator.and_), ("sym_or", operator.or_)):
    if (_function := getattr(symbolic_shapes, _name, None)) is not None:
        registry.functions[_function] = _combined(_operation)


def _is_size(t: Tracer, i: Value, message: Value | None = None, max: Value | None = None) -> Value:
    """The number is a size: not negative, and at most ``max``."""
    check(t, t.compare(">=", i, Constant(0)), message)
    if max is not None and not t.is_none(max):
        check(t, t.compare("<=", i, max), message)
    i = i.realize()
    if isinstance(i, Symbolic) and not i.is_known():
        t.recorder.call(aten.sym_constrain_range_for_size.default, [i], {})
    return Constant(None)


def _alternatives(name: str) -> list[Any]:
    """A function of torch under the names that versions of it have, and what their decorators wrap."""
    found = getattr(torch, name, None)
    return [f for f in (found, getattr(found, "__wrapped__", None)) if f is not None]


for _function in _alternatives("_check_is_size"):
    registry.functions[_function] = _is_size


def _asked_of_sizes(function: Any) -> Any:
    """The handler of a question about a condition on sizes, which torch answers while capturing."""

    def handler(t: Tracer, condition: Value) -> Value:
        value = condition.realize()
        if not isinstance(value, Symbolic):
            return Constant(t.truth(value))
        try:
            return Constant(bool(function(value.number)))
        except Exception as error:
            raise Unsupported(f"{function.__name__} of an unbacked symbol: {error}") from error

    return handler


@registry.function(*filter(None, [getattr(symbolic_shapes, "has_static_value", None)]))
def has_static_value(t: Tracer, a: Value) -> Value:
    """Whether a number is one and the same by what is known while capturing."""
    value = a.realize()
    return Constant(not isinstance(value, Symbolic) or bool(symbolic_shapes.has_static_value(value.number)))


for _name in ("statically_known_true", "guard_size_oblivious", "guard_or_false", "guard_or_true"):
    registry.functions[getattr(symbolic_shapes, _name)] = _asked_of_sizes(getattr(symbolic_shapes, _name))
