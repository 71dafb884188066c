"""Operators as functions: the module ``operator``."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.builtins.numbers import abs_
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import COMPARISONS, Constant, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic


def _operators() -> None:
    binary = (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift",
    )  # fmt: skip

    def binary_operator(operation: Callable, inplace: bool) -> Handler:
        return lambda t, a, b: t.binary(operation, a, b, inplace)

    def comparison(symbol: str) -> Handler:
        return lambda t, a, b: t.compare(symbol, a, b)

    def unary_operator(method: str) -> Handler:
        return lambda t, a: t.unary(method, a.realize())

    for name in binary:
        operation = getattr(operator, name)
        registry.functions[operation] = binary_operator(operation, False)
        registry.functions[getattr(operator, "i" + name.rstrip("_"))] = binary_operator(operation, True)
    for symbol, compared in COMPARISONS.items():
        registry.functions[compared] = comparison(symbol)
    registry.functions[operator.getitem] = lambda t, a, b: t.get_item(a, b.realize())
    registry.functions[operator.contains] = lambda t, a, b: Constant(t.truth(a.realize().contains(t, b)))
    registry.functions[operator.not_] = lambda t, a: Constant(not t.truth(a))
    registry.functions[operator.truth] = lambda t, a: Constant(t.truth(a))
    registry.functions[operator.is_] = lambda t, a, b: Constant(t.is_same(a, b))
    registry.functions[operator.is_not] = lambda t, a, b: Constant(not t.is_same(a, b))
    registry.functions[operator.index] = lambda t, a: (
        Constant(t.int_of(a)) if not isinstance(a.realize(), Symbolic) else a
    )
    for name, unary in (("neg", "negative"), ("pos", "positive"), ("invert", "invert")):
        registry.functions[getattr(operator, name)] = unary_operator(unary)
    registry.functions[operator.abs] = abs_

    def setitem(t: Tracer, container: Value, key: Value, value: Value) -> Value:
        container.realize().set_item(t, key.realize(), value)
        return Constant(None)

    registry.functions[operator.setitem] = setitem

    def concatenation(inplace: bool) -> Handler:
        def handler(t: Tracer, a: Value, b: Value) -> Value:
            becomes_size = issubclass(b.type(), torch.Size) and not issubclass(a.type(), torch.Size)
            if becomes_size or not issubclass(a.type(), (list, tuple, str, bytes, collections.deque)):
                raise Unsupported(f"operator.concat of {a.describe()}")
            return t.binary(operator.add, a, b, inplace)

        return handler

    registry.functions[operator.concat] = concatenation(False)
    registry.functions[operator.iconcat] = concatenation(True)


_operators()
