"""Facts about the expressions of a nest that the emitters ask for."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from turret.ir.emit.emitter import ExprFacts
from turret.ir.expr import Expr, divides_by_zero
from turret.ir.index import Index, Var
from turret.ir.nest import Nest
from turret.plugins.codegen.cpp.emission.operators import op_cost

EXPENSIVE = 8
"""Cost from which a value that two phases of a row need is kept rather than computed again."""


class Facts(ExprFacts):
    """What emitters ask about the expressions of one nest; every answer is computed once."""

    def __init__(self, nest: Nest, row_variables: frozenset[Var] = frozenset()) -> None:
        """``row_variables``: what every row reduction is taken to depend on (the lanes of a vertical one)."""
        super().__init__(nest.tensors)
        self.nest, self.row_variables = nest, row_variables
        self._inner = frozenset(nest.inner)
        self._variables: dict[Expr, frozenset[Var]] = {}
        self._levels: dict[Expr, int] = {}

    def variables(self, expr: Expr) -> frozenset[Var]:
        found = self._variables.get(expr)
        if found is None:
            if expr.op == "const":
                found = frozenset()
            elif expr.op == "row":
                found = (self.variables(expr.args[0]) - self._inner) | self.row_variables
            else:
                found = frozenset().union(
                    *map(self.index_variables, expr.coords), *(self.variables(arg) for arg in expr.args)
                )
                if expr.op == "reduce":
                    found -= frozenset(expr.payload.variables)
                elif expr.op == "scan":
                    found |= {expr.payload[1]}
            self._variables[expr] = found
        return found

    def index_variables(self, index: Index) -> frozenset[Var]:
        """Loops that must be open where ``index`` is evaluated."""
        return frozenset().union(*(self.atom_variables(atom) for atom, _ in index.terms))

    def atom_variables(self, atom: Any) -> frozenset[Var]:
        if isinstance(atom, Var):
            return frozenset((atom,))
        if hasattr(atom, "numerator"):
            return self.index_variables(atom.numerator)
        return self.variables(atom.expr)

    def level(self, expr: Expr) -> int:
        found = self._levels.get(expr)
        if found is None:
            found = max(map(self.level, expr.children()), default=0) + (expr.op == "row")
            self._levels[expr] = found
        return found

    def is_along_row(self, expr: Expr) -> bool:
        return expr.op in ("row", "scan")

    def reports(self, expr: Expr) -> bool:
        return divides_by_zero(expr)

    def total_cost(self, *roots: Expr) -> int:
        """Cost of everything below the roots, shared nodes counted once, rows not entered."""
        seen: set[Expr] = set()
        pending = list(roots)
        total = 0
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                total += op_cost(node)
                if node.op != "row":
                    pending += node.children()
        return total

    def is_expensive(self, expr: Expr, kept: Container[Expr] = ()) -> bool:
        """Whether a value is worth keeping between phases, given what else is: several loads, or costly operations."""
        seen: set[Expr] = set()
        pending, loads, cost = [expr], 0, 0
        while pending:
            node = pending.pop()
            if node in seen or node.op == "row" or not self.variables(node) & self._inner:
                continue
            seen.add(node)
            loads += node.op == "load" or node in kept
            if node not in kept:
                cost += op_cost(node)
                pending += node.children()
        return loads > 1 or cost >= EXPENSIVE
