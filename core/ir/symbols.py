"""Which size symbols statements and expressions mention, and which of them stand for numbers that depend on data."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import attrs
import sympy

from turret.ir.expr import Expr, walk
from turret.ir.index import Div, Index, Mod, Value, Var
from turret.ir.program import (
    CopyInto,
    Definition,
    Extern,
    Number,
    Scatter,
    Statement,
    StridedView,
    TensorDecl,
    bound_symbols,
)

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


def _of_declaration(decl: TensorDecl) -> frozenset[str]:
    return symbols_of_sizes((*decl.shape, *decl.stride))


def _of_arguments(value: Any) -> frozenset[str]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return _NONE.union(*map(_of_arguments, value))
    return symbols_of_size(value)


def mentioned_symbols(statement: Statement, expr: Expr | None = None) -> frozenset[str]:
    """Names of the symbols that must be known before a statement runs.

    ``expr`` stands in for a definition's own expression (a scheduler may have put others into it).
    """
    match statement:
        case Definition():
            found = symbols_of_expr(statement.expr if expr is None else expr)
            return found | _of_declaration(statement.tensor)
        case Scatter():
            roots = [statement.expr, *(v for c in statement.coords for v in c.values)]
            roots += [] if statement.condition is None else [statement.condition]
            found = _NONE.union(*map(symbols_of_expr, roots), *map(symbols_of_index, statement.coords))
            loops = symbols_of_sizes(v.extent for v in statement.variables)
            return found | loops | _of_declaration(statement.tensor)
        case StridedView():
            return _of_declaration(statement.tensor) | symbols_of_size(statement.offset)
        case Extern():
            results = _NONE.union(*(_of_declaration(o) for o in statement.outputs if o is not None))
            found = _of_arguments((*statement.args, statement.kwargs)) | results
            return found - frozenset(bound_symbols(statement))
        case Number():
            return symbols_of_size(statement.value)
        case CopyInto():
            return _NONE


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
