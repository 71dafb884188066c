"""From an ``ir.Kernel`` to a ``Nest``: rewrites that make the loops simple before any C++ is written.

Reductions over the whole row become nodes of their own (op ``row``; the variables of the row stay free in them), and
only sum, prod, min, max, any and all are left of the kinds of reductions.

In order: scans and reductions over the row are made to need no mask; accesses become flat offsets; Welford and arg
reductions become sums, minima and maxima; reductions over the row are marked; short rows and short local reductions are
unrolled; variables are split where an index divides them, and merged where every access walks through them
contiguously.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import attrs

from turret.ir.conditions import mask_hoisted, mask_operands
from turret.ir.expr import (
    Expr,
    ReductionKind,
    divides_by_zero,
    reduce,
    rewrite,
    walk,
)
from turret.ir.index import Div, Index, Mod, Size, Var, product, provably_less, size, unflatten
from turret.ir.nest import (
    FlatStore,
    Nest,
    adopt_row,
    combined,
    flat_load,
    fresh,
    map_roots,
    nest_of,
    plain_reduction,
    points,
    scan_innermost,
    split_loops,
    substitute,
)
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel

SHORT_ROW = 16
"""Rows and local reductions of at most this many elements are unrolled ..."""
UNROLLED_NODES = 600
"""... unless they would become this many nodes."""


def normalise(kernel: Kernel, tensors: dict[str, TensorDecl]) -> Nest:
    """The nest of a kernel; ``UnsupportedError`` where loops cannot express it."""
    nest = adopt_row(nest_of(kernel, tensors), lambda loops: _is_short(product(v.extent for v in loops)))
    nest = scan_innermost(mask_operands(mask_hoisted(nest), divides_by_zero))
    nest = map_roots(nest, _Simplifier(nest).replace)
    nest = _unroll_row(nest)
    if nest.reductions:
        nest = map_roots(nest, _unroll_local)
    if nest.inner and not _has_rows(nest) and not nest.scan_variables:
        nest = attrs.evolve(nest, outer=nest.loops, inner=())
    return _merge(_order(_split(nest)))


# ---------------------------------------------------------------- reductions


class _Simplifier:
    """Loads at flat offsets, and only plain reductions: those over the row as ``row`` nodes."""

    def __init__(self, nest: Nest) -> None:
        self.tensors, self.row = nest.tensors, frozenset(nest.inner)

    def replace(self, node: Expr) -> Expr | None:
        """The simpler form of a node whose operands are simple already."""
        if node.op == "load":
            return flat_load(node, self.tensors)
        plain = plain_reduction(node, self._reduce)
        if plain is not None or node.op != "reduce" or node.payload.kind == "welford":
            return plain
        return self._reduce(node.payload.kind, node.payload.variables, node.args[0])

    def _reduce(self, kind: ReductionKind, variables: tuple[Var, ...], value: Expr) -> Expr:
        if variables and frozenset(variables) == self.row:
            return Expr.make("row", (value,), value.dtype, kind)
        return reduce(kind, variables, value)


def _has_rows(nest: Nest) -> bool:
    return any(node.op == "row" for node in walk(*nest.roots))


# ---------------------------------------------------------------- unrolling


def _is_short(count: Size) -> bool:
    """Whether a row has points to unroll, and few; one of no elements may have symbols among its extents."""
    return isinstance(count, int) and 0 < count <= SHORT_ROW


def _unroll_row(nest: Nest) -> Nest:
    count = product(v.extent for v in nest.inner)
    if not nest.inner or not _is_short(count) or any(store.mode is not None for store in nest.stores):
        return nest
    if count * sum(1 for _ in walk(*nest.roots)) > UNROLLED_NODES or nest.scan_variables:
        return nest
    at = points(nest.inner)

    def flat(node: Expr) -> Expr | None:
        if node.op != "row":
            return None
        return combined(node.payload, [rewrite(node.args[0], p) for p in at], node.dtype)

    nest = map_roots(nest, flat)
    stores = [single for store in nest.stores for single in _at_points(nest, store, at)]
    return attrs.evolve(nest, inner=(), stores=tuple(stores))


def _at_points(nest: Nest, store: FlatStore, at: Sequence[Mapping[Var, Index]]) -> list[FlatStore]:
    """A store along the row as one for each point of it; any other by itself."""
    if store.offset.variables.union(*(root.variables for root in store.roots)).isdisjoint(nest.inner):
        return [store]
    single = attrs.evolve(nest, stores=(store,))
    return [changed for point in at for changed in substitute(single, point)]


def _unroll_local(node: Expr) -> Expr | None:
    """The terms of a short reduction that is not over the row (a pooling window, say)."""
    if node.op != "reduce":
        return None
    variables = node.payload.variables
    count = product(v.extent for v in variables)
    if (
        not isinstance(count, int)
        or not 0 < count <= 2 * SHORT_ROW
        or count * sum(1 for _ in walk(node)) > UNROLLED_NODES
    ):
        return None
    return combined(node.payload.kind, [rewrite(node.args[0], p) for p in points(variables)], node.dtype)


# ---------------------------------------------------------------- splitting and merging loops


def _shadowed(nest: Nest) -> bool:
    """Whether a reduction of its own binds a variable that is also a loop of the nest."""
    return any(set(node.payload.variables) & set(nest.loops) for node in nest.reductions)


def _split(nest: Nest) -> Nest:
    """Split a loop by each divisor of its bare variable, largest first, so that the divisions fold away."""
    if _shadowed(nest):
        return nest
    return split_loops(nest, set(nest.scan_variables) | _scatter_order(nest))


def _scatter_order(nest: Nest) -> set[Var]:
    """Loops whose order shows: those of kernels that write an element more than once."""
    return set(nest.loops) if any(store.mode is not None for store in nest.stores) else set()


def _order(nest: Nest) -> Nest:
    """Nest loops the way memory lies: outer ones by the strides of the first store, the row's by the first load."""
    if _scatter_order(nest):
        return nest
    outer = _by_stride(nest.outer, nest.stores[0].offset)
    row_loads = [n for n in walk(*nest.roots) if n.op == "load" and n.coords[0].variables & set(nest.inner)]
    if not row_loads or nest.scan_variables:
        return attrs.evolve(nest, outer=outer)
    return attrs.evolve(nest, outer=outer, inner=_by_stride(nest.inner, row_loads[0].coords[0]))


def _by_stride(loops: tuple[Var, ...], offset: Index) -> tuple[Var, ...]:
    """Largest stride first; loops that ``offset`` does not mention stay where they are."""
    moving = [v for v in loops if offset.coefficient(v) != 0]

    def compare(first: Var, second: Var) -> int:
        a, b = offset.coefficient(first), offset.coefficient(second)
        return -1 if provably_less(b, a) else int(provably_less(a, b))

    ordered = iter(sorted(moving, key=functools.cmp_to_key(compare)))
    return tuple(next(ordered) if v in moving else v for v in loops)


def _merge(nest: Nest) -> Nest:
    """Merge neighbouring loops that every access walks through as one."""
    if _shadowed(nest):
        return nest
    fixed = set(nest.scan_variables)
    indices = nest.indices()
    indices += [coord for store in nest.stores if store.mode is not None for coord in store.coords]
    mapping: dict[Var, Index] = {}

    def merged(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        if any(loop.extent == 0 for loop in loops):
            return loops  # nothing runs, and an index divided by no extent is none
        runs: list[list[Var]] = []
        for loop in loops:
            if runs and not fixed & {runs[-1][-1], loop} and _contiguous(runs[-1][-1], loop, indices):
                runs[-1].append(loop)
            else:
                runs.append([loop])
        return tuple(run[0] if len(run) == 1 else _joined(nest, run, mapping) for run in runs)

    outer, inner = merged(nest.outer), merged(nest.inner)
    return Nest(outer, inner, substitute(nest, mapping), nest.tensors) if mapping else nest


def _joined(nest: Nest, run: list[Var], mapping: dict[Var, Index]) -> Var:
    """One variable for a run of loops; notes what each of them is in terms of it."""
    whole = fresh(nest, f"m{run[0].name}_", product(v.extent for v in run))
    for variable, coord in zip(run, unflatten(whole.index, tuple(v.extent for v in run)), strict=True):
        mapping[variable] = coord
    return whole


def _contiguous(first: Var, second: Var, indices: list[Index]) -> bool:
    for index in indices:
        if size(index.coefficient(first) - index.coefficient(second) * second.extent) != 0:
            return False
        for atom, _ in index.terms:
            # Values have indices of their own, which are looked at apart.
            if isinstance(atom, (Div, Mod)) and atom.variables & {first, second}:
                return False
    return True
