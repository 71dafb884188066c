"""Sizes (ints, or sympy expressions over size symbols) as C++ text over ``int64_t`` symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sympy

from turret.errors import UnsupportedError
from turret.ir.index import Size


def symbols_of(value: Size) -> frozenset[str]:
    """Names of the size symbols in ``value``."""
    return frozenset() if isinstance(value, int) else frozenset(s.name for s in value.free_symbols)


Namer = Callable[[str], str]
"""From a size symbol to its C++ name."""


def size_text(value: Size, namer: Namer) -> str:
    """``value`` as a C++ expression; ``UnsupportedError`` names a function of sizes that is not known."""
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 31 else f"{value}ll"
    value = sympy.sympify(value)
    if value.is_Integer:
        return size_text(int(value), namer)
    if value.is_Symbol:
        return namer(value.name)
    kind = type(value).__name__
    if kind == "Pow" and value.args[1].is_Integer and value.args[1] >= 1:
        return f"({' * '.join([size_text(value.args[0], namer)] * int(value.args[1]))})"
    if kind == "floor":
        value = sympy.Tuple(*value.args[0].as_numer_denom())
    printer = _PRINTERS.get(kind)
    if printer is None:
        raise UnsupportedError(f"C++ kernels cannot compute the size {value} ({kind})")
    return printer([size_text(argument, namer) for argument in value.args])


def _fold(function: str) -> Callable[[list[str]], str]:
    return lambda args: functools.reduce(lambda left, right: f"{function}({left}, {right})", args)


def _infix(sign: str) -> Callable[[list[str]], str]:
    return lambda args: f"({sign.join(sorted(args))})"


_PRINTERS: dict[str, Callable[[list[str]], str]] = {
    "Add": _infix(" + "),
    "Mul": _infix(" * "),
    "floor": _fold("floor_div"),
    "FloorDiv": _fold("floor_div"),
    "CleanDiv": _fold("floor_div"),
    "CeilDiv": lambda args: f"(-floor_div(-{args[0]}, {args[1]}))",
    "Mod": _fold("floor_mod"),
    "PythonMod": _fold("floor_mod"),
    "ModularIndexing": lambda args: f"floor_mod(floor_div({args[0]}, {args[1]}), {args[2]})",
    "Max": _fold("most"),
    "Min": _fold("least"),
    "Abs": lambda args: f"most({args[0]}, -({args[0]}))",
}
