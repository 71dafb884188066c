"""Symbolic numbers: sizes and numbers that are known only when the graph runs, and their arithmetic."""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.frames.sources import Source
from turret.graph.ops.host_math import float_power
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import DecidedByData, FloatNeeded, NotConstant, Unsupported
from turret.plugins.capture.values.base import (
    BINARY_NAMES,
    COMPARISON_NAMES,
    COMPARISONS,
    Answer,
    Constant,
    Rebuilder,
    Tracer,
    Value,
)
from turret.plugins.capture.values.decisions import decide
from turret.plugins.capture.values.domains import (
    require,
    require_divisor,
    require_finite_power,
    require_made,
    require_whole,
)
from turret.torch_compat.fakes import get_tensor_symint

_BITWISE = (operator.and_, operator.or_, operator.xor)
"""Operators whose results torch's symbols cannot compare: it takes ``(n | 1) < (n | 1)`` for true."""


_OF_EXPONENTS = (operator.pow, operator.lshift, operator.rshift)
"""Operators whose results kernels compute as long as the exponent is a constant."""


def _compute(t: Tracer, operation: Callable, left: Value, right: Value) -> Value:
    """A number of the graph; what ints are raised to or shifted by is assumed to be what it is now."""
    exact = _computed_exactly(t, operation, left, right)
    if exact is not None:
        return exact
    exponent = isinstance(right, Symbolic) and right.is_known() and right.type() is int
    if operation in _OF_EXPONENTS and exponent and left.type() in (int, bool):
        right = Constant(right.fixed())  # type: ignore[attr-defined]
        if left.is_constant():
            return t.fold(operation, [left, right], {})
    if operation in _SHIFTS and isinstance(left, Symbolic) and right.is_constant():
        return _shifted(t, operation, left, right)
    if _divides_by_zero(t, operation, right):
        return t.fold(operation, [_as_now(left), _as_now(right)], {})
    if float in (left.type(), right.type()) and (operation in _WHOLE or _is_product_with_zero(operation, left, right)):
        return _of_floats(t, operation, left, right)
    return _as_float(t.recorder.call(operation, [left, right], {}))


def _computed_exactly(t: Tracer, operation: Callable, left: Value, right: Value) -> Value | None:
    """A float as Python rounds it, where it changes from call to call or depends on data; None for other numbers.

    Asserts of data what the operation needs, except in optimizers, whose counts of steps are fit for it.
    """
    asks = t.policy.data_dependent and not t.call_stack.in_optimizer()
    if asks and operation in _DIVISIONS and is_of_data(right):
        require_divisor(t, right)
    computed = t.recorder.computed(operation, [left, right])
    by_data = operation is operator.truediv and is_of_data(right)
    exactly = asks if by_data else t.policy.data_dependent
    if computed is None and exactly and _is_of_data(operation, left, right):
        return _in_tensors(t, operation, left, right)
    if computed is None and asks and operation is operator.pow and _is_power_of_data(left, right):
        return _float_power(t, left, right)
    return computed


def _is_of_data(operation: Callable, left: Value, right: Value) -> bool:
    """Whether one of two numbers is a float that depends on data, and the operation raises for none."""
    values = (left, right)
    if not any(map(_is_data_float, values)) or not all(
        isinstance(v, Symbolic) or _is_exact(v.constant()) for v in values
    ):
        return False
    if operation is operator.truediv:  # by none of data that is zero, see ``_computed_exactly``
        return is_of_data(right) or (right.is_constant() and right.constant() != 0)
    return operation in (operator.add, operator.sub, operator.mul)


def _is_power_of_data(base: Value, exponent: Value) -> bool:
    """Whether a power of data is a float, or else complex."""
    if not is_of_data(base) and not (is_of_data(exponent) and _is_positive(base)):
        return False
    negative = exponent.is_constant() and exponent.constant() < 0
    return base.type() is not bool and (negative or float in (base.type(), exponent.type()))


def _is_positive(number: Value) -> bool:
    return number.is_constant() and number.constant() > 0


def _float_power(t: Tracer, base: Value, exponent: Value) -> Value:
    """A power of numbers of which one is of data; asserted to be a float, as Python gives it."""
    if not _is_positive(base):
        _require_power(t, base, exponent)
    made = t.recorder.call(float_power, [base, exponent], {})
    if not exponent.is_constant():
        require_made(t, made)
    return made


def _require_power(t: Tracer, base: Value, exponent: Value) -> None:
    """Assert that a power is no complex number, no division by zero, and no overflow where the exponent tells that."""
    zero = Constant(0)
    whole = exponent.type() is int or (exponent.is_constant() and exponent.constant().is_integer())
    if not whole:
        require(t, t.compare(">=", base, zero), "a power of a negative number")
    if not exponent.is_constant():
        defined = t.binary(operator.or_, t.compare("!=", base, zero), t.compare(">=", exponent, zero))
        require(t, defined, "a division by zero")
    elif exponent.constant() < 0:
        require_divisor(t, base)
    elif exponent.constant() > 1:
        require_finite_power(t, base, exponent.constant())


def is_of_data(value: Value) -> bool:
    return isinstance(value, Symbolic) and not value.is_known()


def as_int(t: Tracer, number: Symbolic, function: Callable = torch.sym_int) -> Value:
    """A float (or a bool) as the int that ``function`` makes of it."""
    found = t.recorder.computed(function, [number])
    if found is not None:
        return found
    if is_of_data(number):
        if number.type() is bool:
            return _number_of_bool(t, number, torch.int64)
        require_whole(t, number)
        whole = as_float64(t, number)
        if function in _ROUNDED:
            whole = t.recorder.call(_ROUNDED[function], [whole], {})
        return t.recorder.call_method("item", [t.recorder.call_method("to", [whole, Constant(torch.int64)], {})], {})
    return t.recorder.call(function, [number], {})


_ROUNDED = {math.floor: torch.floor, math.ceil: torch.ceil, round: torch.round}
"""Functions from floats to ints that do not round towards zero.  Sizes are to be symbols, and no floats made whole."""


def as_float(t: Tracer, number: Symbolic) -> Value:
    """An int (or a bool) as a float."""
    if number.type() is bool and is_of_data(number):
        return _number_of_bool(t, number, torch.float64)
    return t.recorder.call(torch.sym_float, [number], {})


def _number_of_bool(t: Tracer, condition: Value, dtype: torch.dtype) -> Value:
    """0 or 1; torch's symbols for it would be decided on."""
    return t.recorder.call_method("item", [_scalar_tensor(t, condition, dtype)], {})


def _is_data_float(value: Value) -> bool:
    return isinstance(value, Symbolic) and value.type() is float and not value.is_known()


def _compared_exactly(t: Tracer, comparison: Callable, left: Value, right: Value) -> Value:
    """A comparison with a float that depends on data, and may be no number.

    Of such a one torch's symbols know that it equals itself, and that ``not x > y`` is ``x <= y``.
    """
    for value in (left, right):
        exact = (
            value.is_known() or _is_data_float(value) if isinstance(value, Symbolic) else _is_exact(value.constant())
        )
        if not exact:
            raise Unsupported("a comparison of a float that depends on data with an int that no float is")
    return _in_tensors(t, comparison, left, right)


def _is_exact(number: Any) -> bool:
    return type(number) in (float, bool) or (type(number) is int and abs(number) <= 2**53)


def _in_tensors(t: Tracer, operation: Callable, left: Value, right: Value) -> Value:
    """Arithmetic on tensors of one float64, which rounds as Python does; torch's symbols rearrange their terms."""
    sides = [v if v.is_constant() else as_float64(t, v) for v in (left, right)]
    return t.recorder.call_method("item", [t.recorder.call(operation, sides, {})], {})


def as_float64(t: Tracer, number: Value) -> Value:
    """A number as a tensor without dimensions on the host, of the type that Python's floats have."""
    return _scalar_tensor(t, number, torch.float64)


def _scalar_tensor(t: Tracer, number: Value, dtype: torch.dtype) -> Value:
    options: dict[str, Value] = {"dtype": Constant(dtype), "device": Constant(HOST)}
    return t.recorder.call(torch.full, [t.new_tuple([]), number], options)


def _are_undecided(*conditions: Value) -> bool:
    """Whether all are conditions, and on data some of them."""
    symbols = [v for v in conditions if isinstance(v, Symbolic) and v.type() is bool]
    return len(symbols) == len(conditions) and not all(v.is_known() for v in symbols)


def _divides_by_zero(t: Tracer, operation: Callable, right: Value) -> bool:
    return operation in _DIVISIONS and isinstance(right, Symbolic) and right.is_known() and not right.truth(t)


def _as_float(found: Value) -> Value:
    """A result; that which is one float whatever the symbols are, as a constant."""
    if isinstance(found, Symbolic) and found.type() is float and found.number.node.expr.is_number:
        return Constant(float(found.number))  # which may be written as an int
    return found


def _is_product_with_zero(operation: Callable, left: Value, right: Value) -> bool:
    factors = {operator.mul: (left, right), operator.truediv: (left,)}.get(operation, ())
    return any(v.is_constant() and v.constant() == 0 for v in factors)


def _of_floats(t: Tracer, operation: Callable, left: Value, right: Value) -> Value:
    """A remainder, a whole quotient or a product (or quotient) with zero of floats, as it is now.

    Torch takes the remainder for an integer, and decides branches on it by that; its quotient is rounded before it is
    made whole, and loses the sign of a zero; a product with zero is an int of no sign.
    """
    if any(isinstance(v, Symbolic) and not v.is_known() for v in (left, right)):
        if operation not in _WHOLE:
            return t.recorder.call(operation, [left, right], {})
        reason = "a remainder or whole quotient of a float that depends on data"
        raise FloatNeeded(reason) if t.policy.changing else Unsupported(reason)
    return t.fold(operation, [_as_now(left), _as_now(right)], {})


_WHOLE = (operator.mod, operator.floordiv)
_DIVISIONS = (operator.floordiv, operator.mod, operator.truediv)
"""Operators that raise for zero; that torch's symbols simplify ``n % n`` does not say that ``n`` is none."""
_SHIFTS = {operator.lshift: operator.mul, operator.rshift: operator.floordiv}
_MOST_SHIFTED = 4096
"""Bits by which symbols are shifted; numbers that are shifted further are constants."""


def _shifted(t: Tracer, operation: Callable, number: Symbolic, count: Value) -> Value:
    """A shift as a product or a quotient: torch's symbols take a power of two that 64 bits do not hold for infinity."""
    bits = count.constant()
    if not isinstance(bits, int) or not 0 <= bits <= _MOST_SHIFTED:
        return t.fold(operation, [_as_now(number), count], {})
    return t.recorder.call(_SHIFTS[operation], [number, Constant(1 << bits)], {})


def _as_now(number: Value) -> Constant:
    """A number, assumed to be what it is now."""
    return Constant(number.fixed() if isinstance(number, Symbolic) else number.constant())


_PARTS: dict[type, dict[str, Any]] = {
    int: {"real": None, "numerator": None, "imag": 0, "denominator": 1},
    float: {"real": None, "imag": 0.0},
}
"""Attributes of numbers by type; None for the number itself."""
_ITSELF = {int: ("__int__", "__index__", "__trunc__", "conjugate"), float: ("__float__", "conjugate")}
"""Methods that give the number itself, by its type."""


_NEVER_NUMBERS = frozenset({str, bytes, types.NoneType, type, tuple, list, dict, set, torch.dtype, torch.device, slice})
"""Types of which nothing equals a number."""


def _is_number(value: Value) -> bool:
    return isinstance(value, Symbolic) or (value.is_constant() and value.type() in (int, float, bool))


class Symbolic(Value):
    """A number that is known only when the graph runs: a size, or an int that was seen to change."""

    is_drawn = False
    """Whether it is a random number, which is never anything but a number."""

    def __init__(self, node: fx.Node, number: Any, source: Source | None = None) -> None:
        self.node, self.number, self.source = node, number, source
        self.assumed: Any = None

    def type(self) -> type:
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(self.number)]

    def describe(self) -> str:
        return f"the size {self.number}"

    def is_known(self) -> bool:
        """Whether the number is one now: it comes from sizes and numbers of inputs, and not from data."""
        return not free_unbacked_symbols(self.number)

    def is_ragged(self) -> bool:
        """Whether it is the size of a nested tensor that differs from part to part, which only equals itself."""
        return isinstance(self.number, torch.SymInt) and self.number.node.is_nested_int()

    def fixed(self) -> Any:
        """The number, assumed (by a guard on sizes) to be what it is now."""
        if self.is_ragged():
            raise Unsupported(f"the ragged size {self.number} of a nested tensor as a number")
        try:
            self.assumed = self.type()(self.number)
        except Exception as error:
            raise Unsupported(f"an unbacked symbol: {error}") from error
        return self.assumed

    def folded(self) -> Any:
        """The number, once the capture has assumed what it is."""
        if self.assumed is None:
            raise NotConstant(self)
        return self.assumed

    def key(self, t: Tracer) -> Any:
        return self.fixed()

    def get_attr(self, t: Tracer, name: str) -> Value:
        if self.type() in _PARTS and name in _PARTS[self.type()]:
            part = _PARTS[self.type()][name]
            return self if part is None else Constant(part)
        return super().get_attr(t, name)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args and not kwargs:
            found = self.converted(t, name)
            if found is not None:
                return found
        operation = getattr(operator, name, None) if name.startswith("__") else None
        if operation is not None and len(args) == 1 and not kwargs:
            other = self.beside_number(args[0])
            if other.type() in (self.type(), int):
                return _compute(t, operation, self, other)
        return t.fold(getattr(self.fixed(), name), args, kwargs)

    def converted(self, t: Tracer, name: str) -> Value | None:
        """What a method gives that only looks at the number; None for others."""
        if name in _ITSELF.get(self.type(), ()):
            return self
        if self.type() is not float:
            return None
        if name in ("__int__", "__trunc__"):
            return as_int(t, self)
        if name == "is_integer":
            rest = t.binary(operator.mod, self, Constant(1.0))
            return Constant(t.compare("==", rest, Constant(0.0)).truth(t))
        return None

    def truth(self, t: Tracer) -> bool:
        if t.recorder.floats and not self.is_known():
            return decide(t, self.node)
        try:
            return bool(self.number)
        except Exception as error:
            kind = DecidedByData if is_of_data(self) else Unsupported
            raise kind(f"a branch on an unbacked symbol: {error}") from error

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        other = self.beside_number(other, BINARY_NAMES[operation])
        if _is_number(other):
            if operation in (operator.and_, operator.or_) and _are_undecided(self, other):
                return t.recorder.call(operation, [self, other], {})
            if operation in _BITWISE:
                right = Constant(other.fixed()) if isinstance(other, Symbolic) else other
                return t.fold(operation, [Constant(self.fixed()), right], {})
            return _compute(t, operation, self, other)
        return NotImplemented

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        if isinstance(other, Constant) and (isinstance(other.value, str) or operation in _BITWISE):
            return t.fold(operation, [other, Constant(self.fixed())], {})
        other = self.beside_number(other, BINARY_NAMES[operation])
        if _is_number(other):
            return _compute(t, operation, other, self)
        return NotImplemented

    def beside_number(self, other: Value, operation: str = "") -> Value:
        """What is computed (``operation``) or compared with this number, as an int or a float where it is one.

        Torch's symbols know neither bools nor members of enums and other classes of numbers.
        """
        other = other.realize()
        if isinstance(other, Symbolic) or not other.is_constant() or (self.type() is bool and other.type() is bool):
            return other
        value, kind = other.constant(), other.type()
        for plain in (int, float):
            if isinstance(value, plain) and kind is not plain:
                names = (f"__{operation}__", f"__r{operation}__") if operation else COMPARISON_NAMES.values()
                if all(getattr(kind, name) is getattr(plain, name) for name in names):
                    return Constant(plain(value))
        return other

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        other = self.beside_number(other)
        if _is_number(other):
            if any(isinstance(v, Symbolic) and _is_data_float(v) and not v.is_drawn for v in (self, other)):
                return _compared_exactly(t, COMPARISONS[symbol], self, other)
            return t.recorder.call(COMPARISONS[symbol], [self, other], {})
        if not other.is_constant():
            return self.mirrored(t, symbol, other, *((int, float) if self.type() is float else (int,)))
        if other.type() in _NEVER_NUMBERS:
            return NotImplemented
        return t.fold(COMPARISONS[symbol], [_as_now(self), other], {})

    def rebuild(self, r: Rebuilder) -> str:
        if not self.is_ragged():
            return r.output(self)
        for tensor in r.t.recorder.by_fake.values():
            memo = getattr(tensor.fake, "nested_int_memo", None)
            times = None if memo is None else self.number.node.expr / memo.node.expr
            if times is not None and times.is_Integer:
                return r.assign(f"{r.constant(get_tensor_symint)}({r.load(tensor)}, coeff={times})")
        raise Unsupported(f"the ragged size {self.number} of a nested tensor whose offsets the program does not have")
