"""From an ``ir.Kernel`` to the ``Nest`` that tiling and emission work on.

Every access is one flat offset, reductions along the row bind exactly the row's loops and need no mask, and short
reductions of their own (pooling windows) are unrolled.  Loops are split where an index divides them, so that each loop
moves through every tensor with one stride and tiling can see which are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from turret.errors import UnsupportedError
from turret.ir.analysis.contraction import has_matrix_product
from turret.ir.conditions import mask_hoisted, mask_operands
from turret.ir.expr import Expr, call, constant, rewrite, walk
from turret.ir.index import Var, product
from turret.ir.nest import (
    FlatStore,
    Nest,
    adopt_row,
    combined,
    flat_load,
    map_roots,
    nest_of,
    points,
    scan_variable,
    split_loops,
)
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel
from turret.plugins.codegen.triton.tiles.sizes import estimate

UNROLLED_POINTS, UNROLLED_NODES = 32, 800
"""Reductions of at most this many points are unrolled, unless they would become this many nodes."""

_ARG_NODES = 12
"""Nodes that choosing the better of two numbered values takes."""
LANES_ENOUGH = 1 << 15
"""Points outside a short row that keep a device busy when each walks its row alone."""
NEAR = 4
"""Elements from one lane's to the next one's that still share most of the memory that is fetched."""


def normalise(kernel: Kernel, tensors: dict[str, TensorDecl], hints: Mapping[str, int]) -> Nest:
    """The nest of a kernel; ``UnsupportedError`` where tiles cannot express it."""
    nest = attrs.evolve(nest_of(kernel, tensors), hints=hints)
    if kernel.outer and kernel.outer[-1].extent == 1:
        nest = attrs.evolve(nest, stores=tuple(map(_once, nest.stores)))
    nest = _without_trivial_loops(nest)
    if nest.inner or not nest.scattered:
        nest = adopt_row(nest, is_short)
    nest = _free_scan(mask_operands(mask_hoisted(nest)))
    nest = map_roots(nest, lambda node: flat_load(node, tensors) if node.op == "load" else None)
    nest = map_roots(nest, unroll(frozenset(nest.inner)))
    nest = _without_short_row(nest)
    if nest.inner and not _along_row(nest):
        nest = attrs.evolve(nest, outer=nest.loops, inner=())
    return _split(nest)


def _once(store: FlatStore) -> FlatStore:
    """A store of the only step of the loop that it would sum over."""
    return attrs.evolve(store, mode=None) if store.mode == "sum" else store


def _without_trivial_loops(nest: Nest) -> Nest:
    """What is left where some loops run over nothing, or once."""
    if any(_is_over_nothing(node) or not node.payload.variables for node in nest.reductions):
        nest = map_roots(nest, _without_elements)
    empty = frozenset(v for v in nest.loops if v.extent == 0)
    if not empty:
        return nest
    return attrs.evolve(
        nest,
        outer=tuple(v for v in nest.outer if v not in empty),
        inner=tuple(v for v in nest.inner if v not in empty),
        stores=() if empty & set(nest.outer) else tuple(s for s in nest.stores if not s.variables & empty),
    )


def _is_over_nothing(reduction: Expr) -> bool:
    return any(v.extent == 0 for v in reduction.payload.variables)


def _without_elements(node: Expr) -> Expr | None:
    """A reduction over no elements as its neutral value, one over one element as that element; else None."""
    if node.op == "part":
        return _moment_without_elements(node)
    if node.op != "reduce":
        return None
    if node.payload.kind in ("argmin", "argmax") and not node.payload.variables:
        return node.args[1]
    if node.payload.kind == "welford" or not _is_over_nothing(node):
        return None
    return combined(node.payload.kind, [], node.dtype)


def _moment_without_elements(part: Expr) -> Expr | None:
    """The same of a mean, or of a sum of squared differences from it."""
    reduction = part.args[0]
    if not reduction.payload.variables:
        value = reduction.args[0]
        return value if part.payload == "mean" else call("square", call("sub", value, value))
    if _is_over_nothing(reduction):
        return constant(float("nan") if part.payload == "mean" else 0.0, part.dtype)
    return None


# ---------------------------------------------------------------- short reductions


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


# ---------------------------------------------------------------- rows


def _along_row(nest: Nest) -> bool:
    inner = frozenset(nest.inner)
    rows = any(frozenset(node.payload.variables) == inner for node in nest.reductions)
    return rows or bool(nest.scan_variables)


def _free_scan(nest: Nest) -> Nest:
    """Make the variable of scans the row of its own."""
    variable = scan_variable(nest)
    if variable is None:
        return nest
    if any(v is not variable for v in nest.inner) and any(
        frozenset(n.payload.variables) == frozenset(nest.inner) for n in nest.reductions
    ):
        raise UnsupportedError(f"a scan over {variable} and a row over {', '.join(map(str, nest.inner))}")
    return attrs.evolve(nest, outer=tuple(v for v in nest.loops if v is not variable), inner=(variable,))


def _without_short_row(nest: Nest) -> Nest:
    """The windows of pooling and the like unrolled, where neighbouring lanes would not read neighbours along them."""
    rows, lanes = product(v.extent for v in nest.outer), frozenset(nest.outer)
    if not nest.inner or not is_short(nest.inner) or not isinstance(rows, int) or rows < LANES_ENOUGH:
        return nest
    if any(set(nest.inner) & store.variables for store in nest.stores) or not _is_strided(nest, lanes):
        return nest
    unrolled = map_roots(nest, unroll(frozenset()))
    return nest if unrolled.reductions else attrs.evolve(unrolled, inner=())


def _is_strided(nest: Nest, lanes: frozenset[Var]) -> bool:
    """Whether every load that changes along the row has lanes next to each other, or nearly."""
    offsets = [offset for _, offset in nest.accesses()[0] if offset.variables & set(nest.inner)]
    near = [any(0 < abs(estimate(o.coefficient(v), nest.hints)) <= NEAR for v in lanes & o.variables) for o in offsets]
    return all(near)


def _split(nest: Nest) -> Nest:
    if nest.scattered:
        return nest  # the order of a scatter's loops shows
    own = {v for n in nest.reductions if n.payload.variables != nest.inner for v in n.payload.variables}
    if any(has_matrix_product(root) for root in nest.roots):
        own |= set(nest.inner)  # matrix instructions take the depth as it is
    if any(store.mode == "sum" for store in nest.stores):
        own.add(nest.outer[-1])  # each point of the loops outside it has a sum of its own
    return split_loops(nest, own | set(nest.scan_variables))
