"""From an ``ir.Kernel`` to a ``Nest``: rewrites that make the loops simple before any C++ is written.

In order: accesses become flat offsets; Welford and arg reductions become sums, minima and maxima; reductions
over the row are marked; short rows and short local reductions are unrolled; variables are split where an index
divides them, and merged where every access walks through them contiguously.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import attrs
import torch

from turret.errors import UnsupportedError
from turret.ir.expr import (
    Expr,
    call,
    cast,
    constant,
    load,
    rebuild,
    reduce,
    rewrite,
    size_value,
    walk,
)
from turret.ir.index import Div, Index, Mod, Size, Var, divide_exactly, product, provably_less, size, unflatten
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel, Store
from turret.plugins.codegen.cpp.nest import FlatStore, Nest

SHORT_ROW = 16
"""Rows and local reductions of at most this many elements are unrolled ..."""
UNROLLED_NODES = 600
"""... unless they would become this many nodes."""


def normalise(kernel: Kernel, tensors: dict[str, TensorDecl]) -> Nest:
    """The nest of a kernel; ``UnsupportedError`` where loops cannot express it."""
    outer = tuple(v for v in kernel.outer if v.extent != 1)
    inner = tuple(v for v in kernel.inner if v.extent != 1)
    stores = tuple(
        FlatStore(s.tensor, _offset(s, tensors), s.coords, s.expr, s.mode, s.condition) for s in kernel.stores
    )
    nest = _free_scan(_adopt_row(Nest(outer, inner, stores, tensors)))
    nest = _map_roots(nest, _Simplifier(nest).replace)
    nest = _unroll_row(nest)
    if _reductions(nest):
        nest = _map_roots(nest, _unroll_local)
    if nest.inner and not _has_rows(nest) and not _scan_variables(nest):
        nest = attrs.evolve(nest, outer=nest.loops, inner=())
    return _merge(_order(_split(nest)))


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


def _map_roots(nest: Nest, replace: Callable[[Expr], Expr | None]) -> Nest:
    """``nest`` with nodes replaced in every expression, those in offsets included."""
    visit = _Mapper(replace).visit
    return attrs.evolve(nest, stores=tuple(_changed(store, visit, {}) for store in nest.stores))


def _substitute(nest: Nest, mapping: dict[Var, Index]) -> tuple[FlatStore, ...]:
    """The stores with loop variables replaced."""
    done: dict[Expr, Expr] = {}

    def moved(root: Expr) -> Expr:
        if root not in done:
            done[root] = rewrite(root, mapping)
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


def _offset(access: Store | Expr, tensors: dict[str, TensorDecl]) -> Index:
    """Offset, in elements from the tensor's first, of a store or a load."""
    total = Index.make((), 0)
    for coord, stride in zip(access.coords, tensors[access.tensor].stride, strict=True):
        total = total + coord * stride
    return total


# ---------------------------------------------------------------- reductions


def _reductions(nest: Nest) -> list[Expr]:
    return [node for node in walk(*nest.roots) if node.op == "reduce"]


def _adopt_row(nest: Nest) -> Nest:
    """Give reductions over loops of the row's extents the row's own variables, and a rowless kernel a row."""
    found = _reductions(nest)
    inner = nest.inner
    if not inner:
        long = [n for n in found if not _is_short(product(v.extent for v in n.payload.variables))]
        outermost = [n for n in long if not any(n is not m and n in set(walk(m)) for m in long)]
        inner = outermost[0].payload.variables if outermost else ()
        if not inner or set(inner) & set(nest.outer):
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
    return nest if same else _map_roots(nest, renamed)


class _Simplifier:
    """Loads at flat offsets, and only plain reductions: those over the row as ``row`` nodes.

    Welford becomes two sums (the second around the mean), an arg reduction the best value and its first position.
    """

    def __init__(self, nest: Nest) -> None:
        self.tensors, self.row = nest.tensors, frozenset(nest.inner)

    def replace(self, node: Expr) -> Expr | None:
        """The simpler form of a node whose operands are simple already."""
        if node.op == "load":
            return load(node.tensor, (_offset(node, self.tensors),), node.dtype)
        if node.op == "part" and node.args[0].op == "reduce":
            return self._moment(node)
        if node.op != "reduce" or node.payload.kind == "welford":
            return None
        kind, variables = node.payload.kind, node.payload.variables
        return self._best(node) if kind in ("argmin", "argmax") else self._reduce(kind, variables, node.args[0])

    def _reduce(self, kind: str, variables: tuple[Var, ...], value: Expr) -> Expr:
        if variables and frozenset(variables) == self.row:
            return Expr.make("row", (value,), value.dtype, kind)
        return reduce(kind, variables, value)

    def _moment(self, node: Expr) -> Expr:
        welford = node.args[0]
        variables, value = welford.payload.variables, welford.args[0]
        count = size_value(product(v.extent for v in variables), value.dtype)
        mean = call("div", self._reduce("sum", variables, value), count)
        if node.payload == "mean":
            return mean
        return self._reduce("sum", variables, call("square", call("sub", value, mean)))

    def _best(self, node: Expr) -> Expr:
        value, number = node.args
        variables = node.payload.variables
        best = self._reduce("max" if node.payload.kind == "argmax" else "min", variables, value)
        hit = call("eq", value, best)
        if value.dtype.is_floating_point:
            hit = call("logical_or", hit, call("logical_and", call("isnan", value), call("isnan", best)))
        # Positions that fit are compared as 32-bit numbers: twice the lanes.
        low, high = number.payload.bounds() if number.op == "index" else (None, None)
        fits = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < 1 << 31
        dtype = torch.int32 if fits else torch.int64
        none = constant(torch.iinfo(dtype).max, dtype)
        return cast(self._reduce("min", variables, call("where", hit, cast(number, dtype), none)), torch.int64)


def _has_rows(nest: Nest) -> bool:
    return any(node.op == "row" for node in walk(*nest.roots))


def _scan_variables(nest: Nest) -> list[Var]:
    return list(dict.fromkeys(node.payload[1] for node in walk(*nest.roots) if node.op == "scan"))


def _free_scan(nest: Nest) -> Nest:
    """Make the variable of scans the innermost of the row."""
    variables = _scan_variables(nest)
    if not variables:
        return nest
    (variable, *others) = variables
    if others:
        raise UnsupportedError(f"one kernel with scans over several variables ({', '.join(map(str, variables))})")
    if variable in nest.outer and nest.inner:
        raise UnsupportedError(f"a scan over {variable} around a row over {', '.join(map(str, nest.inner))}")
    outer = tuple(v for v in nest.outer if v is not variable)
    inner = (*(v for v in nest.inner if v is not variable), variable)
    return attrs.evolve(nest, outer=outer, inner=inner)


# ---------------------------------------------------------------- unrolling


def _is_short(count: Size) -> bool:
    return isinstance(count, int) and count <= SHORT_ROW


def _points(variables: tuple[Var, ...]) -> list[dict[Var, Index]]:
    points: list[dict[Var, Index]] = [{}]
    for variable in variables:
        points = [{**p, variable: Index.constant(i)} for p in points for i in range(variable.extent)]
    return points


def _combined(kind: str, terms: list[Expr], dtype: torch.dtype) -> Expr:
    """A balanced tree, which also rounds less than a chain; sums start at +0, which shows where all terms are -0."""
    if not terms:
        return _empty(kind, dtype)
    if kind == "sum" and dtype.is_floating_point:
        terms = [*terms, constant(0, dtype)]
    op = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "logical_or", "all": "logical_and"}[kind]
    last_first = kind in ("min", "max")  # of two zeros they take the second; eager's rows keep the first
    while len(terms) > 1:
        pairs = [call(op, *((b, a) if last_first else (a, b))) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def _empty(kind: str, dtype: torch.dtype) -> Expr:
    if kind not in ("sum", "prod", "any", "all"):
        raise UnsupportedError(f"reduction {kind} over no elements")
    return constant(1 if kind in ("prod", "all") else 0, dtype)


def _unroll_row(nest: Nest) -> Nest:
    count = product(v.extent for v in nest.inner)
    if not nest.inner or not _is_short(count) or any(store.mode is not None for store in nest.stores):
        return nest
    if count * sum(1 for _ in walk(*nest.roots)) > UNROLLED_NODES or _scan_variables(nest):
        return nest
    points = _points(nest.inner)
    inner = frozenset(nest.inner)

    def flat(node: Expr) -> Expr | None:
        if node.op != "row":
            return None
        return _combined(node.payload, [rewrite(node.args[0], p) for p in points], node.dtype)

    nest = _map_roots(nest, flat)
    stores: list[FlatStore] = []
    for store in nest.stores:
        free = inner & (store.offset.variables.union(*(root.variables for root in store.roots)))
        single = attrs.evolve(nest, stores=(store,))
        stores += [s for p in points for s in _substitute(single, p)] if free else [store]
    return attrs.evolve(nest, inner=(), stores=tuple(stores))


def _unroll_local(node: Expr) -> Expr | None:
    """The terms of a short reduction that is not over the row (a pooling window, say)."""
    if node.op != "reduce":
        return None
    variables = node.payload.variables
    count = product(v.extent for v in variables)
    if not isinstance(count, int) or count > 2 * SHORT_ROW or count * sum(1 for _ in walk(node)) > UNROLLED_NODES:
        return None
    return _combined(node.payload.kind, [rewrite(node.args[0], p) for p in _points(variables)], node.dtype)


# ---------------------------------------------------------------- splitting and merging loops


def _indices(nest: Nest) -> list[Index]:
    found = [store.offset for store in nest.stores]
    found += [coord for store in nest.stores if store.mode is not None for coord in store.coords]
    for node in walk(*nest.roots):
        found += node.coords
    return list(dict.fromkeys(found))


def _quotients(indices: Iterable[Index]) -> list[Div | Mod]:
    found: list[Div | Mod] = []
    for index in indices:
        for atom, _ in index.terms:
            if isinstance(atom, (Div, Mod)):
                found += [atom, *_quotients((atom.numerator,))]
    return found


def _shadowed(nest: Nest) -> bool:
    """Whether a reduction of its own binds a variable that is also a loop of the nest."""
    return any(set(node.payload.variables) & set(nest.loops) for node in _reductions(nest))


def _split(nest: Nest) -> Nest:
    """Split a loop by each divisor of its bare variable, largest first, so that the divisions fold away."""
    if _shadowed(nest):
        return nest
    keep = set(_scan_variables(nest)) | _scatter_order(nest)
    count = 0
    while count < 8:
        candidates = {
            (atom.numerator.single_variable, atom.divisor)
            for atom in _quotients(_indices(nest))
            if atom.numerator.single_variable in nest.loops
        }
        candidates = {
            (v, d) for v, d in candidates if v not in keep and divide_exactly(v.extent, d) not in (None, 1) and d != 1
        }
        if not candidates:
            return nest
        variable, divisor = max(candidates, key=lambda c: (c[0].name, isinstance(c[1], int), _sortable(c[1])))
        nest = _split_variable(nest, variable, divisor)
        count += 1
    return nest


def _sortable(value: Size) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def _fresh(nest: Nest, stem: str, extent: Size) -> Var:
    taken = {v.name for v in nest.loops} | {v.name for root in nest.roots for v in root.variables}
    number = 0
    while f"{stem}{number}" in taken:
        number += 1
    return Var(f"{stem}{number}", extent)


def _replace_loops(nest: Nest, old: tuple[Var, ...], new: tuple[Var, ...], stores: tuple[FlatStore, ...]) -> Nest:
    def renewed(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        if old[0] not in loops:
            return loops
        at = loops.index(old[0])
        return loops[:at] + new + loops[at + len(old) :]

    return attrs.evolve(nest, outer=renewed(nest.outer), inner=renewed(nest.inner), stores=stores)


def _split_variable(nest: Nest, variable: Var, divisor: Size) -> Nest:
    high = _fresh(nest, "h", divide_exactly(variable.extent, divisor))
    low = _fresh(nest, "l", divisor)
    stores = _substitute(nest, {variable: high.index * divisor + low})
    return _replace_loops(nest, (variable,), (high, low), stores)


def _scatter_order(nest: Nest) -> set[Var]:
    """Loops whose order shows: those of kernels that write an element more than once."""
    return set(nest.loops) if any(store.mode is not None for store in nest.stores) else set()


def _order(nest: Nest) -> Nest:
    """Nest loops the way memory lies: outer ones by the strides of the first store, the row's by the first load."""
    if _scatter_order(nest):
        return nest
    outer = _by_stride(nest.outer, nest.stores[0].offset)
    row_loads = [n for n in walk(*nest.roots) if n.op == "load" and n.coords[0].variables & set(nest.inner)]
    if not row_loads or _scan_variables(nest):
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
    indices, fixed = _indices(nest), set(_scan_variables(nest))
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
    return Nest(outer, inner, _substitute(nest, mapping), nest.tensors) if mapping else nest


def _joined(nest: Nest, run: list[Var], mapping: dict[Var, Index]) -> Var:
    """One variable for a run of loops; notes what each of them is in terms of it."""
    whole = _fresh(nest, f"m{run[0].name}_", product(v.extent for v in run))
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
