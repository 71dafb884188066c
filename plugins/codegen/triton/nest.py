"""A kernel in the form that tiling and emission work on, and the rewrites that bring it there.

In a ``Nest`` every access is one flat offset (in elements), reductions along the row bind exactly the row's loops,
and short reductions of their own (pooling windows) are unrolled.  Loops are split where an index divides them, so
that each loop moves through every tensor with one stride and tiling can see which are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import attrs

from turret.errors import UnsupportedError
from turret.ir.expr import Expr, call, constant, load, rebuild, rewrite, walk
from turret.ir.index import Div, Index, Mod, Size, Var, divide_exactly, product
from turret.ir.program import ScatterMode, TensorDecl
from turret.ir.schedule import Kernel, Store
from turret.plugins.codegen.triton.short import combined, is_short, unroll
from turret.plugins.codegen.triton.sizes import estimate

LANES_ENOUGH = 1 << 15
"""Points outside a short row that keep a device busy when each walks its row alone."""
NEAR = 4
"""Elements from one lane's to the next one's that still share most of the memory that is fetched."""


@attrs.frozen(eq=False)
class FlatStore:
    """``tensor[offset] (mode)= expr where condition``; ``coords`` are the coordinates that the offset came from."""

    tensor: str
    offset: Index
    coords: tuple[Index, ...]
    expr: Expr
    mode: ScatterMode | Literal["sum"] | None = None
    condition: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The expressions evaluated for the store: value, condition, and values in the offset."""
        condition = () if self.condition is None else (self.condition,)
        return (self.expr, *condition, *self.offset.values)

    @property
    def variables(self) -> frozenset[Var]:
        return self.offset.variables.union(*(root.variables for root in self.roots))


@attrs.frozen(eq=False)
class Nest:
    """``for outer: for inner: stores``; reductions along the row bind exactly ``inner``."""

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    stores: tuple[FlatStore, ...]
    tensors: dict[str, TensorDecl]

    @property
    def loops(self) -> tuple[Var, ...]:
        return self.outer + self.inner

    @property
    def roots(self) -> tuple[Expr, ...]:
        return tuple(root for store in self.stores for root in store.roots)

    @property
    def scattered(self) -> bool:
        return any(store.mode not in (None, "sum") for store in self.stores)

    @property
    def swept(self) -> bool:
        """Whether some store sums over the last outer loop."""
        return any(store.mode == "sum" for store in self.stores)

    def accesses(self) -> tuple[list[tuple[str, Index]], list[tuple[str, Index]]]:
        """Tensor and offset of each load, and of each store."""
        reads = [(node.tensor, node.coords[0]) for node in walk(*self.roots) if node.op == "load"]
        return reads, [(store.tensor, store.offset) for store in self.stores]


def normalise(kernel: Kernel, tensors: dict[str, TensorDecl]) -> Nest:
    """The nest of a kernel; ``UnsupportedError`` where tiles cannot express it."""

    def mode(store: Store) -> ScatterMode | Literal["sum"] | None:
        return None if store.mode == "sum" and kernel.outer[-1].extent == 1 else store.mode

    nest = Nest(
        tuple(v for v in kernel.outer if v.extent != 1),
        tuple(v for v in kernel.inner if v.extent != 1),
        tuple(
            FlatStore(s.tensor, flat_offset(s.tensor, s.coords, tensors), s.coords, s.expr, mode(s), s.condition)
            for s in kernel.stores
        ),
        tensors,
    )
    nest = _without_trivial_loops(nest)
    nest = _adopt_row(nest)
    nest = _free_scan(nest)
    nest = map_roots(nest, _flat_load(tensors))
    nest = map_roots(nest, unroll(frozenset(nest.inner)))
    nest = _without_short_row(nest)
    if nest.inner and not _along_row(nest):
        nest = attrs.evolve(nest, outer=nest.loops, inner=())
    return _split(nest)


def flat_offset(tensor: str, coords: Iterable[Index], tensors: dict[str, TensorDecl]) -> Index:
    """Offset of an element from the tensor's first."""
    total = Index.constant(0)
    for coord, stride in zip(coords, tensors[tensor].stride, strict=True):
        total = total + coord * stride
    return total


def _flat_load(tensors: dict[str, TensorDecl]) -> Callable[[Expr], Expr | None]:
    def replace(node: Expr) -> Expr | None:
        if node.op != "load":
            return None
        return load(node.tensor, (flat_offset(node.tensor, node.coords, tensors),), node.dtype)

    return replace


class _Mapper:
    """Replaces nodes bottom-up, each once however many roots and users it has."""

    def __init__(self, replace: Callable[[Expr], Expr | None]) -> None:
        self.replace = replace
        self.done: dict[Expr, Expr] = {}
        self.results: set[Expr] = set()

    def visit(self, expr: Expr) -> Expr:
        for node in walk(expr):
            if node not in self.done:
                self.done[node] = self._visit(node)
        return self.done[expr]

    def _visit(self, node: Expr) -> Expr:
        args = tuple(self.done[arg] for arg in node.args)
        coords = tuple(coord.substitute({}, self.visit) for coord in node.coords)
        same = all(a is b for a, b in zip((*args, *coords), (*node.args, *node.coords), strict=True))
        changed = node if same else rebuild(node, args, coords)
        if node.args and changed in self.results:
            return changed  # folded to something below, which was replaced when it was visited itself
        replaced = self.replace(changed) or changed
        self.results.add(replaced)
        return replaced


def map_roots(nest: Nest, replace: Callable[[Expr], Expr | None]) -> Nest:
    """``nest`` with nodes replaced bottom-up in every expression, those in offsets included."""
    visit = _Mapper(replace).visit
    return attrs.evolve(nest, stores=tuple(_changed(store, visit, {}) for store in nest.stores))


def substitute(
    nest: Nest, mapping: dict[Var, Index], rebind: tuple[tuple[Var, ...], tuple[Var, ...]] | None = None
) -> tuple[FlatStore, ...]:
    """The stores with loop variables replaced; reductions over ``rebind[0]`` become reductions over ``rebind[1]``."""
    done: dict[Expr, Expr] = {}

    def moved(root: Expr) -> Expr:
        if root not in done:
            done[root] = rewrite(root, mapping, rebind=rebind)
        return done[root]

    return tuple(_changed(store, moved, mapping) for store in nest.stores)


def _changed(store: FlatStore, change: Callable[[Expr], Expr], mapping: dict[Var, Index]) -> FlatStore:
    return FlatStore(
        store.tensor,
        store.offset.substitute(mapping, change),
        tuple(c.substitute(mapping, change) for c in store.coords),
        change(store.expr),
        store.mode,
        None if store.condition is None else change(store.condition),
    )


def _without_trivial_loops(nest: Nest) -> Nest:
    """What is left where some loops run over nothing, or once.

    Reductions over no elements are their neutral values, those over one element that element.
    """

    def neutral(node: Expr) -> Expr | None:
        if node.op == "part" and not node.args[0].payload.variables:
            value = node.args[0].args[0]
            return value if node.payload == "mean" else call("square", call("sub", value, value))
        if node.op == "reduce" and node.payload.kind in ("argmin", "argmax") and not node.payload.variables:
            return node.args[1]
        if node.op == "part" and 0 in (v.extent for v in node.args[0].payload.variables):
            return constant(float("nan") if node.payload == "mean" else 0.0, node.dtype)
        if node.op != "reduce" or node.payload.kind == "welford" or 0 not in (v.extent for v in node.payload.variables):
            return None
        return combined(node.payload.kind, [], node)

    if any(0 in [v.extent for v in n.payload.variables] or not n.payload.variables for n in _reductions(nest)):
        nest = map_roots(nest, neutral)
    empty = frozenset(v for v in nest.loops if v.extent == 0)
    if not empty:
        return nest
    return Nest(
        tuple(v for v in nest.outer if v not in empty),
        tuple(v for v in nest.inner if v not in empty),
        () if empty & set(nest.outer) else tuple(s for s in nest.stores if not s.variables & empty),
        nest.tensors,
    )


# ---------------------------------------------------------------- rows


def _reductions(nest: Nest) -> list[Expr]:
    return [node for node in walk(*nest.roots) if node.op == "reduce"]


def _scan_variables(nest: Nest) -> list[Var]:
    return list(dict.fromkeys(node.payload[1] for node in walk(*nest.roots) if node.op == "scan"))


def _along_row(nest: Nest) -> bool:
    inner = frozenset(nest.inner)
    rows = any(frozenset(node.payload.variables) == inner for node in _reductions(nest))
    return rows or bool(_scan_variables(nest))


def _adopt_row(nest: Nest) -> Nest:
    """Give reductions over loops of the row's extents the row's own variables, and a rowless kernel a row.

    The longest outermost reduction of a kernel without a row becomes its row.
    """
    found = _reductions(nest)
    inner = nest.inner
    if not inner:
        long = [n for n in found if not is_short(n.payload.variables)]
        outermost = [n for n in long if not any(n is not m and n in set(walk(m)) for m in long)]
        inner = outermost[0].payload.variables if outermost else ()
        if not inner or set(inner) & set(nest.outer) or nest.scattered:
            return nest
        nest = attrs.evolve(nest, inner=inner)
    extents = [v.extent for v in inner]

    def renamed(node: Expr) -> Expr | None:
        own = node.payload.variables if node.op == "reduce" else inner
        if own == inner or [v.extent for v in own] != extents or node.args[0].variables & set(inner):
            return None
        mapping = {old: new.index for old, new in zip(own, inner, strict=True)}
        args = tuple(rewrite(arg, mapping) for arg in node.args)
        return Expr.make("reduce", args, node.dtype, attrs.evolve(node.payload, variables=inner))

    same = all(node.payload.variables == inner for node in found)
    return nest if same else map_roots(nest, renamed)


def _free_scan(nest: Nest) -> Nest:
    """Make the variable of scans the row of its own."""
    variables = _scan_variables(nest)
    if not variables:
        return nest
    (variable, *others) = variables
    if others:
        raise UnsupportedError(f"one kernel with scans over several variables ({', '.join(map(str, variables))})")
    if any(v is not variable for v in nest.inner) and any(
        frozenset(n.payload.variables) == frozenset(nest.inner) for n in _reductions(nest)
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
    return nest if _reductions(unrolled) else attrs.evolve(unrolled, inner=())


def _is_strided(nest: Nest, lanes: frozenset[Var]) -> bool:
    """Whether every load that changes along the row has lanes next to each other, or nearly."""
    offsets = [offset for _, offset in nest.accesses()[0] if offset.variables & set(nest.inner)]
    near = [any(0 < abs(estimate(o.coefficient(v))) <= NEAR for v in lanes & o.variables) for o in offsets]
    return all(near)


# ---------------------------------------------------------------- splitting loops


def _quotients(indices: Iterable[Index]) -> list[Div | Mod]:
    found: list[Div | Mod] = []
    for index in indices:
        for atom, _ in index.terms:
            if isinstance(atom, (Div, Mod)):
                found += [atom, *_quotients((atom.numerator,))]
    return found


def _indices(nest: Nest) -> list[Index]:
    found = [store.offset for store in nest.stores]
    for node in walk(*nest.roots):
        found += node.coords
    return list(dict.fromkeys(found))


def _split(nest: Nest) -> Nest:
    """Split a loop by each divisor of its bare variable, largest first, so that the divisions fold away."""
    fixed = set(_scan_variables(nest)) | {
        v for n in _reductions(nest) if n.payload.variables != nest.inner for v in n.payload.variables
    }
    if nest.scattered:
        return nest  # the order of a scatter's loops shows
    for _ in range(8):
        candidates = {
            (atom.numerator.single_variable, atom.divisor)
            for atom in _quotients(_indices(nest))
            if atom.numerator.single_variable in nest.loops
        }
        candidates = {
            (v, d) for v, d in candidates if v not in fixed and divide_exactly(v.extent, d) not in (None, 1) and d != 1
        }
        if not candidates:
            break
        nest = _split_variable(nest, *max(candidates, key=lambda c: (c[0].name, *_sortable(c[1]))))
    return nest


def _sortable(value: Size) -> tuple[bool, int, str]:
    return (True, value, "") if isinstance(value, int) else (False, 0, str(value))


def _split_variable(nest: Nest, variable: Var, divisor: Size) -> Nest:
    high = _fresh(nest, "h", divide_exactly(variable.extent, divisor))
    low = _fresh(nest, "l", divisor)

    def renewed(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(w for v in loops for w in ((high, low) if v is variable else (v,)))

    outer, inner = renewed(nest.outer), renewed(nest.inner)
    stores = substitute(nest, {variable: high.index * divisor + low}, (nest.inner, inner))
    return Nest(outer, inner, stores, nest.tensors)


def _fresh(nest: Nest, stem: str, extent: Size) -> Var:
    taken = {v.name for v in nest.loops} | {v.name for root in nest.roots for v in root.variables}
    number = 0
    while f"{stem}{number}" in taken:
        number += 1
    return Var(f"{stem}{number}", extent)
