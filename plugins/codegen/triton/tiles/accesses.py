"""What the accesses of a nest move along its loops, which tilings go by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from turret.ir.expr import Expr, walk
from turret.ir.index import Index, Var
from turret.ir.nest import FlatStore, Nest
from turret.plugins.codegen.triton.tiles.sizes import estimate


def stride(offset: Index, variable: Var, hints: Mapping[str, int]) -> int | None:
    """How far an offset moves with a loop, as a number for heuristics; None where it does not move evenly."""
    if any(variable in atom.variables for atom, _ in offset.terms if not isinstance(atom, Var)):
        return None
    return estimate(offset.coefficient(variable), hints)


def points_of(offset: Index, loops: tuple[Var, ...], hints: Mapping[str, int]) -> int:
    # A size that is none for such values of symbols (n - 16) counts as one.
    return math.prod(max(1, estimate(v.extent, hints)) for v in loops if v in offset.variables)


def large_offsets(nest: Nest, loops: tuple[Var, ...]) -> list[Index]:
    """The offsets of accesses that reach more than half as many elements as any."""
    reads, writes = nest.accesses()
    offsets = [offset for _, offset in (*reads, *writes)]
    points = {offset: points_of(offset, loops, nest.hints) for offset in offsets}
    most = max(points.values())
    return [offset for offset in offsets if 2 * points[offset] > most]


def typical_offset(nest: Nest) -> Index:
    """The access that a reduction's loops are ordered by: a large one, contiguous along what most of them are."""
    large = large_offsets(nest, nest.loops)
    leads = [next((v for v in nest.loops if stride(offset, v, nest.hints) == 1), None) for offset in large]
    lead = max((v for v in leads if v is not None), key=leads.count, default=None)
    chosen = [offset for offset, own in zip(large, leads, strict=True) if own is lead]
    return max(chosen, key=lambda offset: points_of(offset, nest.loops, nest.hints))


def is_along_row(nest: Nest) -> bool:
    """Whether memory is contiguous along the row, and not across rows."""
    typical = typical_offset(nest)
    along, across = ([stride(typical, v, nest.hints) for v in loops] for loops in (nest.inner, nest.outer))
    return 1 in along or 1 not in across


def moved_values(nest: Nest) -> list[torch.dtype]:
    """The types of the values of a point that are read, or written, when the row is first walked; those that many
    points share are left out."""
    along = stored_along(nest) if is_walked_once(nest) else []
    first = [operand for operand in row_operands(nest) if not any(reduces_row(nest, node) for node in walk(operand))]
    values = [root for store in along for root in store.roots]
    reads = [(node.tensor, node.coords[0]) for node in walk(*first, *values) if node.op == "load"]
    return moved_by(nest, [*reads, *((store.tensor, store.offset) for store in along)])


def moved_by(nest: Nest, accesses: Iterable[tuple[str, Index]]) -> list[torch.dtype]:
    """The types of what distinct accesses move of a point; those that many points share are left out."""
    total = math.prod(estimate(v.extent, nest.hints) for v in nest.loops)
    large = (name for name, at in dict.fromkeys(accesses) if 2 * points_of(at, nest.loops, nest.hints) > total)
    return [nest.tensors[name].dtype for name in large]


def has_moments(nest: Nest) -> bool:
    """Whether moments of the row are among what is computed."""
    return any(reduces_row(nest, node) and node.payload.kind == "welford" for node in walk(*nest.roots))


def is_walked_once(nest: Nest) -> bool:
    """Whether reductions of the row and what is stored along it need no result of the row."""
    along = [root for store in stored_along(nest) for root in store.roots]
    return not any(reduces_row(nest, node) for node in walk(*row_operands(nest), *along))


def row_operands(nest: Nest) -> list[Expr]:
    """What reductions of the row take."""
    return [child for node in walk(*nest.roots) if reduces_row(nest, node) for child in node.children()]


def stored_along(nest: Nest) -> list[FlatStore]:
    return [store for store in nest.stores if store.variables & frozenset(nest.inner)]


def reduces_row(nest: Nest, node: Expr) -> bool:
    """Whether a node is a reduction of the row."""
    return node.op == "reduce" and frozenset(node.payload.variables) == frozenset(nest.inner)
