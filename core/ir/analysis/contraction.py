"""Contractions: sums of products over one loop, which is what a matrix product is in the loop IR.

``products.py`` of the scheduler writes matrix products so, and code generators that have matrix instructions find them
again by ``contraction``, whatever was fused around them.
"""

from __future__ import annotations

import attrs

from turret.ir.analysis.groups import RowGroups, picked_group
from turret.ir.expr import Expr, expr_of, walk
from turret.ir.index import Value, Var


@attrs.frozen(eq=False)
class Contraction:
    """``node``: the sum over ``depth`` of ``left`` times ``right``.

    ``rows`` are loops that the left factor alone varies along, ``columns`` those of the right factor alone, ``batch``
    those of both.  ``groups``, if not None: one of the factors is picked, from several, by the group that a row of the
    other one is in, and does not count as varying along that for it.
    """

    node: Expr
    left: Expr
    right: Expr
    depth: Var
    rows: frozenset[Var]
    columns: frozenset[Var]
    batch: frozenset[Var]
    groups: RowGroups | None = None

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
    (own_left, groups), (own_right, others) = _variables(left), _variables(right)
    if depth not in own_left or depth not in own_right:
        return None
    if groups is not None or others is not None:
        found, rows = (groups, own_right) if groups is not None else (others, own_left)
        if (groups is not None and others is not None) or found is None or not found.row.variables <= rows:
            return None
        groups = found
    shared = own_left & own_right
    return Contraction(
        node, left, right, depth, own_left - shared, own_right - shared, shared - frozenset((depth,)), groups
    )


def _variables(factor: Expr) -> tuple[frozenset[Var], RowGroups | None]:
    """The loops that a factor varies along, but for the group that picks it, and that group, if there is one."""
    read = factor.args[0] if factor.op == "cast" else factor
    if read.op != "load":
        return factor.variables, None
    found: RowGroups | None = None
    variables: frozenset[Var] = frozenset()
    for coord in read.coords:
        for atom, _ in coord.terms:
            groups = picked_group(expr_of(atom)) if isinstance(atom, Value) else None
            if groups is None or found is not None:
                variables |= atom.variables
            else:
                found = groups
    return variables, found


def contractions(*roots: Expr) -> list[Contraction]:
    """Every contraction in some expressions, those inside of others left out of none."""
    return [found for node in walk(*roots) if (found := contraction(node)) is not None]


def has_matrix_product(expr: Expr) -> bool:
    """Whether an expression contains a contraction of two matrices."""
    return any(found.is_matrix for found in contractions(expr))


def group_ends(expr: Expr) -> set[str]:
    """The tensors of ends of groups that contractions in an expression have."""
    return {found.groups.ends for found in contractions(expr) if found.groups is not None}
