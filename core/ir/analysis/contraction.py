"""Contractions: sums of products over one loop, which is what a matrix product is in the loop IR.

``products.py`` of the scheduler writes matrix products so, and code generators that have matrix instructions find them
again by ``contraction``, whatever was fused around them.
"""

from __future__ import annotations

import attrs

from turret.ir.expr import Expr, walk
from turret.ir.index import Var


@attrs.frozen(eq=False)
class Contraction:
    """``node``: the sum over ``depth`` of ``left`` times ``right``.

    ``rows`` are loops that the left factor alone varies along, ``columns`` those of the right factor alone, ``batch``
    those of both.
    """

    node: Expr
    left: Expr
    right: Expr
    depth: Var
    rows: frozenset[Var]
    columns: frozenset[Var]
    batch: frozenset[Var]

    @property
    def is_matrix(self) -> bool:
        """Whether both factors are used again: each element of them is part of several sums."""
        return bool(self.rows) and bool(self.columns)


def contraction(node: Expr) -> Contraction | None:
    """A node as a contraction; None where it is no sum of products over one loop."""
    if node.op != "reduce" or node.payload.kind != "sum" or len(node.payload.variables) != 1:
        return None
    (depth,) = node.payload.variables
    product = node.args[0]
    if product.op != "mul":
        return None
    left, right = product.args
    if depth not in left.variables or depth not in right.variables:
        return None
    shared = left.variables & right.variables
    return Contraction(
        node, left, right, depth, left.variables - shared, right.variables - shared, shared - frozenset((depth,))
    )


def contractions(*roots: Expr) -> list[Contraction]:
    """Every contraction in some expressions, those inside of others left out of none."""
    return [found for node in walk(*roots) if (found := contraction(node)) is not None]


def has_matrix_product(expr: Expr) -> bool:
    """Whether an expression contains a contraction of two matrices."""
    return any(found.is_matrix for found in contractions(expr))
