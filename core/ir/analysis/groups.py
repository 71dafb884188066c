"""Rows in consecutive groups, as the experts of a layer have them: which group picks what a row is multiplied with."""

from __future__ import annotations

import attrs
import torch

from turret.ir.expr import Expr, call, constant, group_of, index_value
from turret.ir.index import Index

MOST_GROUPS = 1024
"""Groups whose ends a program of a kernel may read at once."""


@attrs.frozen(eq=False)
class RowGroups:
    """``node``: the number of the group that ``row`` is in, of ``count``; ``count`` itself for rows behind all groups.

    ``ends`` is the tensor of where each group ends.
    """

    node: Expr
    ends: str
    count: int
    row: Index

    @property
    def picked(self) -> Expr:
        """The number of the group, or of the last one: an index that lies in ``range(count)`` for every row."""
        return call("min", self.node, constant(self.count - 1, torch.int64))


def row_groups_of(ends: str, count: int, row: Index) -> RowGroups:
    """The groups of rows, of which there is one at least."""
    return RowGroups(group_of(ends, index_value(row), count), ends, count, row)


def picked_group(node: Expr) -> RowGroups | None:
    """A number as ``RowGroups.picked``; None where it is another."""
    if node.op != "min" or node.args[0].op != "group_of":
        return None
    groups = node.args[0]
    first, row = groups.args
    found = RowGroups(groups, first.tensor, groups.payload, Index.of_value(row))
    return found if found.picked is node and not found.row.values else None
