"""Which size symbols expressions, indices and sizes mention."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import attrs
import sympy

from turret.ir.expr import Expr, walk
from turret.ir.index import Div, Index, Mod, Value, Var

_NONE: frozenset[str] = frozenset()


def symbols_of_size(value: Any) -> frozenset[str]:
    """Names of the symbols of a size (or of a condition on sizes); none of anything else."""
    return frozenset(s.name for s in value.free_symbols) if isinstance(value, sympy.Basic) else _NONE


def symbols_of_sizes(values: Iterable[Any]) -> frozenset[str]:
    """Names of the symbols of several sizes."""
    return _NONE.union(*map(symbols_of_size, values))


def symbols_of_index(index: Index) -> frozenset[str]:
    """Names of the symbols of an index; those of values that the program computes are the expression's."""
    found = symbols_of_size(index.const)
    for atom, coefficient in index.terms:
        found |= symbols_of_size(coefficient)
        if isinstance(atom, Var):
            found |= symbols_of_size(atom.extent)
        elif isinstance(atom, Div | Mod):
            found |= symbols_of_size(atom.divisor) | symbols_of_index(atom.numerator)
    return found


@functools.lru_cache(maxsize=16384)
def symbols_of_expr(expr: Expr) -> frozenset[str]:
    """Names of the symbols of an expression: of sizes used as numbers, of indices, of the loops of reductions."""
    found = _NONE
    for node in walk(expr):
        for coord in node.coords:
            found |= symbols_of_index(coord)
        if node.op in ("size", "check_index", "wrap_index"):
            found |= symbols_of_size(node.payload)
        elif node.op == "reduce":
            found |= symbols_of_sizes(v.extent for v in node.payload.variables)
        elif node.op == "scan":
            found |= symbols_of_size(node.payload[1].extent)
    return found


def symbols_within(product: Any) -> list[sympy.Symbol]:
    """The size symbols that a program, or any part of one, mentions, by name."""
    found: set[sympy.Symbol] = set()
    _gather(product, found, set())
    return sorted(found, key=lambda symbol: symbol.name)


def _gather(value: Any, found: set[sympy.Symbol], seen: set[Expr]) -> None:
    """Add the symbols of a value to ``found``; ``seen``: expressions that were looked at."""
    match value:
        case sympy.Basic():
            found |= value.free_symbols
        case Expr():
            if value not in seen:
                seen.add(value)
                _gather((value.args, value.coords, value.payload), found, seen)
        case Index():
            _gather((value.const, value.terms), found, seen)
        case Var():
            _gather(value.extent, found, seen)
        case Div() | Mod():
            _gather((value.divisor, value.numerator), found, seen)
        case Value():
            _gather(value.expr, found, seen)
        case list() | tuple():
            for item in value:
                _gather(item, found, seen)
        case dict():
            _gather(list(value.values()), found, seen)
        case _ if attrs.has(type(value)):
            _gather([getattr(value, a.name) for a in attrs.fields(type(value))], found, seen)


def has_float(value: Any) -> bool:
    """Whether any symbol of an expression stands for a float."""
    return isinstance(value, sympy.Basic) and any(not s.is_integer for s in value.free_symbols)
