"""Floats that were seen to change from call to call, and what Python computes from them ahead of the graph.

Arithmetic on them is no part of the graph: rebuilt code computes it as the program would, to the bit, whatever function
it is; the graph is given results.  A branch leaves a guard on the condition.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from turret.frames.sources import ComputedSource, Source
from turret.plugins.capture.errors import FloatNeeded, Unsupported
from turret.plugins.capture.python.polyfills import total
from turret.plugins.capture.values.base import COMPARISONS, Answer, Constant, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic
from turret.torch_compat.sizes import ARITHMETIC


def as_scalar_tensor(number: float) -> torch.Tensor:
    """A float as the tensor that a graph takes it in."""
    return torch.tensor(number, dtype=torch.float64)


class Changing(Symbolic):
    """A number that is another one on other calls, and that Python finds or computes at ``source``."""

    source: Source
    value: Any

    def __init__(self, t: Tracer, value: Any, source: Source, is_drawn: bool = False) -> None:
        """``is_drawn``: it comes of random numbers, so that no guard may ask for it but where the program branches."""
        self.t, self.value, self.source, self.is_drawn = t, value, source, is_drawn
        self.assumed = None

    def type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        return f"the {self.type().__name__} {self.source}"

    def is_known(self) -> bool:
        return False

    def is_ragged(self) -> bool:
        return False

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        found = computed(t, operation, [self, other])
        return super().binary(t, operation, other, inplace) if found is None else found

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        found = computed(t, operation, [other, self])
        return super().reflected(t, operation, other) if found is None else found

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        found = computed(t, COMPARISONS[symbol], [self, other])
        return super().compare(t, symbol, other) if found is None else found

    def assumed_now(self) -> Any:
        """The number, assumed to be what it is now."""
        if self.is_drawn:
            raise Unsupported(f"{self.describe()}, which is random, where a constant is needed")
        self.t.guards.take("EQUALS", self.source, self.value)
        return self.value

    def fixed(self) -> Any:
        return self.assumed_now()


class ChangingFloat(Changing):
    """A float that changes; it becomes an input of the graph where the graph needs it.

    It comes in as a tensor of one element, and ``item()`` of that is its number: beside tensors it then counts as the
    Python number that it is.
    """

    def __init__(self, t: Tracer, value: float, source: Source, is_drawn: bool = False) -> None:
        super().__init__(t, value, source, is_drawn)
        if not is_drawn:
            t.policy.changing.add(source)
        self.made: tuple[fx.Node, Any] | None = None

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        return self.in_graph()[0]

    @property
    def number(self) -> Any:
        return self.in_graph()[1]

    def in_graph(self) -> tuple[fx.Node, Any]:
        """The node and the symbol that stand for the float, made at first use."""
        if self.made is None:
            self.made = self.t.recorder.float_input(self)
        return self.made

    def truth(self, t: Tracer) -> bool:
        return t.truth(t.compare("!=", self, Constant(0.0)))

    def fixed(self) -> Any:
        if self.is_drawn or isinstance(self.source, ComputedSource):
            return self.assumed_now()
        raise FloatNeeded(f"{self.describe()}, which changes, where a constant is needed")


class ChangingBool(Changing):
    """A condition on floats that change: a guard, where the program branches on it."""

    def truth(self, t: Tracer) -> bool:
        t.guards.take("SIZES", self.source, "{0}" if self.value else "not {0}")
        return self.value

    def fixed(self) -> Any:
        return self.truth(self.t)


def computed(t: Tracer, function: Any, args: Sequence[Value]) -> Value | None:
    """The number that a function gives for numbers of which one changes, as Python computes it ahead of the graph.

    A float that comes of sizes is such a number.  None where it is no function of numbers alone, where one of the
    numbers is known when the graph runs, and for integers that come of sizes, which the graph computes.
    """
    values = [a.realize() for a in args]
    function, changes = _FUNCTIONS.get(function), any(isinstance(v, Changing) for v in values)
    if function is None or not (changes or _makes_floats(function, values)):
        return None
    drawn, operands = _are_drawn(values), _operands(t, values)
    if operands is None or (drawn and function in _CONDITIONS):
        return None
    arguments, numbers = zip(*operands, strict=True)
    source, found = ComputedSource(function, arguments), None
    with contextlib.suppress(Exception):
        found = function(*numbers)
    if source.depth > _DEEPEST or (type(found) is int and not changes):
        return None
    if _is_number_of_graph(found):
        return _computed_number(t, source, found, numbers, drawn)
    # The program raises here, or the number is none of the graph's.
    return t.fold(function, [Constant(_now(v)) for v in values], {})


def _are_drawn(values: Sequence[Value]) -> bool:
    return any(isinstance(v, Changing) and v.is_drawn for v in values)


def _makes_floats(function: Any, values: Sequence[Value]) -> bool:
    """Whether a function makes floats of sizes."""
    if not any(isinstance(v, Symbolic) for v in values):
        return False
    return function in _OF_FLOATS or any(isinstance(v, (Symbolic, Constant)) and v.type() is float for v in values)


def _is_number_of_graph(found: Any) -> bool:
    return type(found) in (float, bool) or (type(found) is int and abs(found) < 2**62)


def _computed_number(t: Tracer, source: ComputedSource, found: Any, numbers: Sequence[Any], drawn: bool) -> Value:
    """The number that Python computes at a source; ``numbers``: the arguments now."""
    t.blocks.refuse("numbers that Python computes", of_one=True)
    specialized = t.policy.is_constant(source)
    if type(found) is float and not drawn and (specialized or not math.isfinite(found)):
        t.guards.take("EQUALS", source, found)
        return Constant(found)
    if not _always_gives_one(source, numbers):
        t.guards.take("TYPE", source, type(found))
    if type(found) is int:
        return t.recorder.int_input(found, source)
    kind = ChangingFloat if type(found) is float else ChangingBool
    return kind(t, found, source, drawn)


def _now(value: Value) -> Any:
    if isinstance(value, Changing):
        return value.assumed_now()
    return value.fixed() if isinstance(value, Symbolic) else value.constant()


def _operands(t: Tracer, values: Sequence[Value]) -> list[tuple[Any, Any]] | None:
    """The numbers, as ``_operand`` has each; None where the graph gives one."""
    found = [_operand(t, v) for v in values]
    return None if None in found else found  # type: ignore[return-value]


def _operand(t: Tracer, value: Value) -> tuple[Any, Any] | None:
    """A number, or the source that leads to it, and what it is now; None for one that the graph gives."""
    if isinstance(value, Changing):
        return value.source, value.value
    if isinstance(value, Constant):
        return (value.value, value.value) if type(value.value) in (int, float, bool) else None
    if not isinstance(value, Symbolic) or value.type() is not int or not value.is_known() or value.is_ragged():
        return None
    bound = {b.expression: b.source for b in reversed(t.recorder.bindings)}
    source = _source_of_size(value.number.node.expr, bound)
    return None if source is None else (source, value.number.node.hint)


def _source_of_size(expression: sympy.Expr, bound: dict[Any, Source]) -> Any:
    """A size or an int of the inputs, or what integers come of such, as a source; None where there is none."""
    if expression in bound:
        return bound[expression]
    if expression.is_Integer:
        return int(expression)
    function = ARITHMETIC.get(expression.func)
    parts = [_source_of_size(part, bound) for part in expression.args]
    if function is None or not parts or None in parts:
        return None
    return functools.reduce(lambda one, other: ComputedSource(function, (one, other)), parts)


def _always_gives_one(source: ComputedSource, numbers: Sequence[Any]) -> bool:
    """Whether the function gives a number of the same type for all floats, and raises for none."""
    if float not in map(type, numbers):
        return False
    if source.function in (min, max):
        return set(map(type, numbers)) == {float}
    by_constant = source.function in _DIVISIONS and not isinstance(source.arguments[1], Source)
    return by_constant or source.function in _TOTAL


_TOTAL = frozenset(
    (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, float, total, *COMPARISONS.values())
)
_CONDITIONS = frozenset(COMPARISONS.values())
_DIVISIONS = frozenset((operator.truediv, operator.floordiv, operator.mod))
_OF_MATH = frozenset(f for f in vars(math).values() if isinstance(f, types.BuiltinFunctionType))
_OF_FLOATS = frozenset((operator.truediv, operator.pow, float, *_OF_MATH))
"""Functions that give floats of integers, too."""
_DEEPEST = 64
"""Functions inside each other; what is computed from more is computed by the graph."""
_FUNCTIONS: dict[Any, Any] = {
    **{f: f for f in (*_TOTAL, *_DIVISIONS, operator.pow, round, int, min, max)},
    **{f: f for f in _OF_MATH},
    torch.sym_int: int, torch.sym_float: float, operator.abs: abs,
}  # fmt: skip
"""Functions of numbers alone, with the one that Python calls."""
