"""Functions of ``math``: of numbers that depend on data, computed by the same functions where the graph runs."""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import attrs

from turret.graph.ops.host_math import host_math
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.domains import require
from turret.plugins.capture.values.sequences import List
from turret.plugins.capture.values.symbols import Symbolic, as_float, as_float64, as_int, is_of_data

_WHOLE = (math.floor, math.ceil, math.trunc)


def _answer(t: Tracer, /, *args: Value, function: Callable[..., Any], **named: Value) -> Value:
    values = [a.realize() for a in args]
    if named:
        return t.fold(function, list(map(_fixed, values)), {n: _fixed(v.realize()) for n, v in named.items()})
    found = t.recorder.computed(function, values)
    if found is not None:
        return found
    if any(isinstance(v, Symbolic) for v in values):
        if function in _WHOLE and isinstance(value := values[0], Symbolic):
            if value.type() is int:
                return value
            if t.policy.data_dependent:
                return as_int(t, value, function)
        found = _of_data(t, function, values) if t.policy.data_dependent and any(map(is_of_data, values)) else None
        if found is not None:
            return found
    return t.fold(function, list(map(_fixed, values)), {})


def _fixed(value: Value) -> Value:
    return Constant(value.fixed()) if isinstance(value, Symbolic) else value


def _of_data(t: Tracer, function: Any, values: list[Value]) -> Value | None:
    """What a function gives for floats of data, of which the graph asserts that Python raises for none; or None."""
    if not all(map(_is_number, values)):
        return None
    values = [as_float(t, v) if isinstance(v, Symbolic) and v.type() is not float else v for v in values]
    name = function.__name__
    if name in _CLASSES and len(values) == 1:
        return _CLASSES[name](t, values[0])
    conditions = _power(values) if name == "pow" else _DOMAINS.get((name, len(values)))
    if conditions is None or not all(c.holds(values) for c in conditions):
        return None
    for condition in conditions:
        condition.require(t, values, name)
    given: list[Value] = [Constant(name), List([as_float64(t, v) for v in values])]
    return t.recorder.call_method("item", [t.recorder.call(host_math, given, {})], {})


def _is_number(value: Value) -> bool:
    if not isinstance(value, (Constant, Symbolic)) or value.type() not in (bool, int, float):
        return False
    return not value.is_constant() or abs(value.constant()) < _MOST or value.type() is float


_MOST = 2.0**63
"""Int constants from here on are no numbers of 64 bits."""

_CLASSES: dict[str, Callable[[Tracer, Value], Value]] = {
    "isnan": lambda t, v: t.compare("!=", v, v),
    "isinf": lambda t, v: t.compare("==", t.recorder.call(abs, [v], {}), Constant(math.inf)),
    "isfinite": lambda t, v: t.compare("<", t.recorder.call(abs, [v], {}), Constant(math.inf)),
}
"""Questions, which comparisons answer."""

_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}


@attrs.frozen
class _Condition:
    """That an argument, or its distance from zero, compares so with a bound: else Python may raise."""

    sign: str
    bound: float
    distance: bool = False
    argument: int = 0

    def holds(self, values: list[Value]) -> bool:
        """Whether it holds as far as is known ahead of the graph."""
        value = values[self.argument]
        if not value.is_constant():
            return True
        number = value.constant()
        return bool(_SIGNS[self.sign](abs(number) if self.distance else number, self.bound))

    def require(self, t: Tracer, values: list[Value], name: str) -> None:
        value = values[self.argument]
        if not value.is_constant():
            number = t.recorder.call(abs, [value], {}) if self.distance else value
            require(t, t.compare(self.sign, number, Constant(self.bound)), f"a number that math.{name} may refuse")


_FINITE = _Condition("!=", math.inf, distance=True)
_NO_OVERFLOW = 709.0
"""Exponents of e below this one give a float (``log(sys.float_info.max)`` is 709.78)."""
_MOST_DOUBLINGS = 1000.0

_ONE: dict[str, tuple[_Condition, ...]] = {
    "sqrt": (_Condition(">=", 0.0),),
    **dict.fromkeys(("log", "log2", "log10"), (_Condition(">", 0.0),)),
    "log1p": (_Condition(">", -1.0),),
    **dict.fromkeys(("exp", "expm1"), (_Condition("<", _NO_OVERFLOW),)),
    "exp2": (_Condition("<", _MOST_DOUBLINGS),),
    **dict.fromkeys(("sinh", "cosh"), (_Condition("<", _NO_OVERFLOW, distance=True),)),
    **dict.fromkeys(("sin", "cos", "tan"), (_FINITE,)),
    **dict.fromkeys(("asin", "acos"), (_Condition("<=", 1.0, distance=True),)),
    "atanh": (_Condition("<", 1.0, distance=True),),
    "acosh": (_Condition(">=", 1.0),),
    **dict.fromkeys(("gamma", "lgamma"), (_Condition(">", 0.0), _Condition("<", 170.0))),
    **dict.fromkeys(("tanh", "atan", "asinh", "erf", "erfc", "fabs", "degrees", "radians", "cbrt"), ()),
}
_DOMAINS: dict[tuple[str, int], tuple[_Condition, ...]] = {
    **{(name, 1): conditions for name, conditions in _ONE.items()},
    **{(name, 2): () for name in ("atan2", "copysign")},
    ("hypot", 2): (_Condition("<", 1e300, distance=True), _Condition("<", 1e300, distance=True, argument=1)),
    ("fmod", 2): (_FINITE, _Condition("!=", 0.0, argument=1)),
}
"""By name and number of arguments; a function that is not here is one of known numbers alone."""


def _power(values: list[Value]) -> tuple[_Condition, ...] | None:
    """For ``math.pow`` of a number of data and a constant: that the result is a float, and no infinity."""
    base, exponent = values
    if exponent.is_constant() and (power := exponent.constant()) != 0:
        most = 2.0 ** min(_MOST_DOUBLINGS, _MOST_DOUBLINGS / abs(power))
        return _Condition("<", most), _Condition(">=", 0.0) if power > 0 else _Condition(">", 1 / most)
    if base.is_constant() and base.constant() > 0 and base.constant() != 1:
        return (_Condition("<", _MOST_DOUBLINGS / abs(math.log2(base.constant())), distance=True, argument=1),)
    return None


for _function in vars(math).values():
    if isinstance(_function, types.BuiltinFunctionType) and _function not in registry.functions:
        registry.functions[_function] = functools.partial(_answer, function=_function)
