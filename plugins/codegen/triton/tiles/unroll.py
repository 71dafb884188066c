"""Reductions over so few points that their terms are written out."""

from __future__ import annotations

from collections.abc import Callable

from turret.ir.expr import Expr, call, rewrite, walk
from turret.ir.index import Var, product
from turret.ir.nest import combined, points

UNROLLED_POINTS, UNROLLED_NODES = 32, 800
"""Reductions of at most this many points are unrolled, unless they would become this many nodes."""

_ARG_NODES = 12
"""Nodes that choosing the better of two numbered values takes."""


def is_short(variables: tuple[Var, ...]) -> bool:
    count = product(v.extent for v in variables)
    return isinstance(count, int) and 0 < count <= UNROLLED_POINTS


def unroll(row: frozenset[Var]) -> Callable[[Expr], Expr | None]:
    """A replacement: the terms of a short reduction that is not over ``row``."""

    def replace(node: Expr) -> Expr | None:
        if node.op != "reduce" or frozenset(node.payload.variables) == row or not is_short(node.payload.variables):
            return None
        kind = node.payload.kind
        if kind == "welford":
            return None
        at = points(node.payload.variables)
        numbered = kind in ("argmin", "argmax")
        if len(at) * (sum(1 for _ in walk(node)) + numbered * _ARG_NODES) > UNROLLED_NODES:
            return None
        if numbered:
            return _number_of_best(kind, [tuple(rewrite(a, p) for a in node.args) for p in at])
        return combined(kind, [rewrite(node.args[0], p) for p in at], node.dtype)

    return replace


def _number_of_best(kind: str, terms: list[tuple[Expr, ...]]) -> Expr:
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
