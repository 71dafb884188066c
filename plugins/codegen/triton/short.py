"""Reductions over so few points that their terms are written out."""

from __future__ import annotations

from collections.abc import Callable

from turret.errors import UnsupportedError
from turret.ir.expr import Expr, call, constant, rewrite, walk
from turret.ir.index import Index, Var, product

UNROLLED_POINTS, UNROLLED_NODES = 32, 800
"""Reductions of at most this many points are unrolled, unless they would become this many nodes."""

_ARG_NODES = 12
"""Nodes that choosing the better of two numbered values takes."""


def is_short(variables: tuple[Var, ...]) -> bool:
    count = product(v.extent for v in variables)
    return isinstance(count, int) and count <= UNROLLED_POINTS


def unroll(row: frozenset[Var]) -> Callable[[Expr], Expr | None]:
    """A replacement: the terms of a short reduction that is not over ``row``."""

    def replace(node: Expr) -> Expr | None:
        if node.op != "reduce" or frozenset(node.payload.variables) == row or not is_short(node.payload.variables):
            return None
        kind = node.payload.kind
        if kind == "welford":
            return None
        points: list[dict[Var, Index]] = [{}]
        for variable in node.payload.variables:
            points = [{**p, variable: Index.constant(i)} for p in points for i in range(variable.extent)]
        numbered = kind in ("argmin", "argmax")
        if len(points) * (sum(1 for _ in walk(node)) + numbered * _ARG_NODES) > UNROLLED_NODES:
            return None
        if numbered:
            return _number_of_best(kind, [tuple(rewrite(a, p) for a in node.args) for p in points])
        return combined(kind, [rewrite(node.args[0], p) for p in points], node)

    return replace


def combined(kind: str, terms: list[Expr], node: Expr) -> Expr:
    """Terms of a reduction as a balanced tree, which rounds less than a chain."""
    if not terms:
        if kind not in ("sum", "prod", "any", "all"):
            raise UnsupportedError(f"reduction {kind} over no elements")
        return constant(1 if kind in ("prod", "all") else 0, node.dtype)
    op = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "logical_or", "all": "logical_and"}[kind]
    while len(terms) > 1:
        pairs = [call(op, a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def _number_of_best(kind: str, terms: list[tuple[Expr, Expr]]) -> Expr:
    """The number of the best value: a NaN is better than anything, and of equals the least number counts."""
    (best, at), *rest = terms
    for value, number in rest:
        better = call("gt" if kind == "argmax" else "lt", value, best)
        equal = call("eq", value, best)
        if value.dtype.is_floating_point:
            new, old = call("isnan", value), call("isnan", best)
            better = call("logical_or", better, call("logical_and", new, call("logical_not", old)))
            equal = call("logical_or", equal, call("logical_and", new, old))
        taken = call("logical_or", better, call("logical_and", equal, call("lt", number, at)))
        best, at = call("where", taken, value, best), call("where", taken, number, at)
    return at
