"""Kernels as loop nests: the form that code generators work on, and the rewrites that bring a kernel there.

In a ``Nest`` every access is one flat offset, in elements.  Which rewrites a code generator wants, and in which order,
is its own matter; each of them takes a nest and gives one that computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

import attrs
import torch

from turret.errors import UnsupportedError
from turret.ir.expr import (
    Expr,
    ReductionKind,
    call,
    cast,
    constant,
    keep_checks,
    load,
    rebuild,
    reduce,
    rewrite,
    size_value,
    walk,
)
from turret.ir.index import Div, Index, Mod, Size, Var, divide_exactly, product, provably_nonnegative
from turret.ir.program import ScatterMode, TensorDecl
from turret.ir.schedule import Kernel

_MOST_SPLITS = 8


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
    """``for outer: for inner: stores``; reductions along the row bind exactly ``inner``.

    ``hints``: values of size symbols for heuristics (``LoopProgram.hints``).
    """

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    stores: tuple[FlatStore, ...]
    tensors: dict[str, TensorDecl]
    hints: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def loops(self) -> tuple[Var, ...]:
        return self.outer + self.inner

    @property
    def roots(self) -> tuple[Expr, ...]:
        return tuple(root for store in self.stores for root in store.roots)

    @property
    def scattered(self) -> bool:
        """Whether an element may be written more than once, in an order that shows."""
        return any(store.mode not in (None, "sum") for store in self.stores)

    @property
    def swept(self) -> bool:
        """Whether some store sums over the last outer loop."""
        return any(store.mode == "sum" for store in self.stores)

    @property
    def independent(self) -> tuple[Var, ...]:
        """The outer loops whose iterations may run in any order.

        In a kernel that writes elements more than once, those of which different iterations write different ones.
        """
        loops = self.outer
        for store in self.stores:
            if store.mode is not None:
                loops = tuple(v for v in loops if any(coord.single_variable is v for coord in store.coords))
        return loops

    @property
    def reductions(self) -> list[Expr]:
        return [node for node in walk(*self.roots) if node.op == "reduce"]

    @property
    def scan_variables(self) -> list[Var]:
        return list(dict.fromkeys(node.payload[1] for node in walk(*self.roots) if node.op == "scan"))

    def accesses(self) -> tuple[list[tuple[str, Index]], list[tuple[str, Index]]]:
        """Tensor and offset of each load, and of each store."""
        reads = [(node.tensor, node.coords[0]) for node in walk(*self.roots) if node.op == "load"]
        return reads, [(store.tensor, store.offset) for store in self.stores]

    def indices(self) -> list[Index]:
        """Every index that is computed: the offsets, and the numbers that values are made of."""
        found = [store.offset for store in self.stores]
        for node in walk(*self.roots):
            found += node.coords
        return list(dict.fromkeys(found))


def nest_of(kernel: Kernel, tensors: dict[str, TensorDecl]) -> Nest:
    """A kernel's loops of more than one step, with its stores at flat offsets (its loads are as they were)."""
    return Nest(
        tuple(v for v in kernel.outer if v.extent != 1),
        tuple(v for v in kernel.inner if v.extent != 1),
        tuple(
            FlatStore(s.tensor, flat_offset(s.tensor, s.coords, tensors), s.coords, s.expr, s.mode, s.condition)
            for s in kernel.stores
        ),
        tensors,
    )


def flat_offset(tensor: str, coords: Iterable[Index], tensors: dict[str, TensorDecl]) -> Index:
    """Offset of an element from the tensor's first."""
    total = Index.constant(0)
    for coord, stride in zip(coords, tensors[tensor].stride, strict=True):
        total = total + coord * stride
    return total


def flat_load(node: Expr, tensors: dict[str, TensorDecl]) -> Expr:
    """A load at its flat offset, with the checks of coordinates that do not move it."""
    offset = flat_offset(node.tensor, node.coords, tensors)
    return keep_checks(load(node.tensor, (offset,), node.dtype), node.coords)


def always_inside(offset: Index, decl: TensorDecl) -> bool:
    """Whether a flat offset is known to stay within the tensor, whatever its variables are."""
    low, high = offset.bounds()
    if low is None or high is None or not all(provably_nonnegative(n - 1) for n in decl.shape):
        return False
    return provably_nonnegative(low) and provably_nonnegative(decl.last_offset - high)


# ---------------------------------------------------------------- rewriting


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
    return change_roots(nest, _Mapper(replace).visit)


def change_roots(nest: Nest, change: Callable[[Expr], Expr]) -> Nest:
    """``nest`` with every expression changed, those in offsets included."""
    return attrs.evolve(nest, stores=tuple(change_store(store, change) for store in nest.stores))


def substitute(
    nest: Nest, mapping: Mapping[Var, Index], rebind: tuple[tuple[Var, ...], tuple[Var, ...]] | None = None
) -> tuple[FlatStore, ...]:
    """The stores with loop variables replaced; reductions over ``rebind[0]`` become reductions over ``rebind[1]``."""
    done: dict[Expr, Expr] = {}

    def moved(root: Expr) -> Expr:
        if root not in done:
            done[root] = rewrite(root, mapping, rebind=rebind)
        return done[root]

    return tuple(change_store(store, moved, mapping) for store in nest.stores)


def change_store(
    store: FlatStore, change: Callable[[Expr], Expr], mapping: Mapping[Var, Index] | None = None
) -> FlatStore:
    """A store with its expressions changed, those in offsets included, and loop variables of offsets replaced."""
    mapping = mapping or {}
    return FlatStore(
        store.tensor,
        store.offset.substitute(mapping, change),
        tuple(c.substitute(mapping, change) for c in store.coords),
        change(store.expr),
        store.mode,
        None if store.condition is None else change(store.condition),
    )


# ---------------------------------------------------------------- rows


def adopt_row(nest: Nest, is_short: Callable[[tuple[Var, ...]], bool]) -> Nest:
    """Give reductions over loops of the row's extents the row's own variables, and a rowless kernel a row.

    An outermost reduction that is not short becomes the row of a kernel without one.
    """
    found = nest.reductions
    inner = nest.inner
    if not inner:
        inner = _outermost([n for n in found if not is_short(n.payload.variables)])
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
    return nest if same else map_roots(nest, renamed)


def _outermost(reductions: list[Expr]) -> tuple[Var, ...]:
    """The loops of the first reduction that is inside of no other; none where there are no reductions."""
    outermost = [n for n in reductions if not any(n is not m and n in set(walk(m)) for m in reductions)]
    return outermost[0].payload.variables if outermost else ()


def scan_variable(nest: Nest) -> Var | None:
    """The variable that the nest's scans go along; ``UnsupportedError`` where they go along several."""
    variables = nest.scan_variables
    if len(variables) > 1:
        raise UnsupportedError(f"one kernel with scans over several variables ({', '.join(map(str, variables))})")
    return variables[0] if variables else None


def scan_innermost(nest: Nest) -> Nest:
    """``nest`` with the variable of its scans as the innermost of the row."""
    variable = scan_variable(nest)
    if variable is None:
        return nest
    if variable in nest.outer and nest.inner:
        raise UnsupportedError(f"a scan over {variable} around a row over {', '.join(map(str, nest.inner))}")
    outer = tuple(v for v in nest.outer if v is not variable)
    inner = (*(v for v in nest.inner if v is not variable), variable)
    return attrs.evolve(nest, outer=outer, inner=inner)


# ---------------------------------------------------------------- reductions


def accumulator_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    """What a serial reduction or scan is carried in: double for sums and products of narrower floats, as eager's."""
    return torch.float64 if dtype.is_floating_point and kind in ("sum", "prod") else dtype


Reducer = Callable[[ReductionKind, tuple[Var, ...], Expr], Expr]


def plain_reduction(node: Expr, make: Reducer = reduce) -> Expr | None:
    """A Welford or arg reduction as plain ones, made by ``make``; None for other nodes.

    A moment is two sums and then one around their mean; an arg reduction is the best value and its first position, for
    which a value that is computed twice must come out equal.
    """
    if node.op == "part" and node.args[0].op == "reduce":
        return plain_moment(node, make)
    if node.op == "reduce" and node.payload.kind in ("argmin", "argmax"):
        return _first_best(node, make)
    return None


def plain_moment(node: Expr, make: Reducer = reduce) -> Expr:
    """The mean, or the sum of squares around it, by the corrected two-pass algorithm (Chan, Golub and LeVeque, 1983).

    The sum of the differences from the mean, which rounding alone keeps from 0, corrects both.  Where all elements are
    equal, it says how far rounding took the mean from them: so few units in their last place that no term is rounded.
    The mean is their value, then, and the variance 0, as eager's running mean has them.
    """
    welford = node.args[0]
    variables, value = welford.payload.variables, welford.args[0]
    count = size_value(product(v.extent for v in variables), value.dtype)
    near = call("div", make("sum", variables, value), count)
    apart = call("sub", value, near)
    squares = make("sum", variables, call("square", apart))
    if has_exact_mean(welford):
        return near if node.payload == "mean" else squares
    rest = make("sum", variables, apart)
    return corrected_moment(node.payload, near, rest, call("div", rest, count), squares)


def has_exact_mean(welford: Expr) -> bool:
    """Whether the mean of a row of equal elements is their value without correction: their sum is not rounded.

    So it is of numbers of a half type in float32, where the row has no more elements than float32 has digits to spare.
    """
    value = welford.args[0]
    if value.op != "cast" or value.dtype != torch.float32 or value.args[0].op != "load":
        return False
    spare = _SPARE_DIGITS.get(value.args[0].dtype)
    count = product(v.extent for v in welford.payload.variables)
    return spare is not None and isinstance(count, int) and count <= 1 << spare


_SPARE_DIGITS = {torch.bfloat16: 24 - 8, torch.float16: 24 - 11}


def corrected_moment(which: str, near: Expr, rest: Expr, off: Expr, squares: Expr) -> Expr:
    """A moment by the differences from ``near``: their sum, mean and sum of squares.

    An infinite mean is what it is; the differences from it are NaN.
    """
    if which == "mean":
        return call("where", call("isnan", off), near, call("add", near, off))
    return call("max", call("sub", squares, call("mul", rest, off)), constant(0, near.dtype))


def _first_best(node: Expr, make: Reducer) -> Expr:
    value, number, variables = *node.args, node.payload.variables
    best = make("max" if node.payload.kind == "argmax" else "min", variables, value)
    hit = call("eq", value, best)
    if value.dtype.is_floating_point:
        hit = call("logical_or", hit, call("logical_and", call("isnan", value), call("isnan", best)))
    # Positions that fit are compared as 32-bit numbers: twice the lanes.
    low, high = number.payload.bounds() if number.op == "index" else (None, None)
    fits = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < 1 << 31
    dtype = torch.int32 if fits else torch.int64
    none = constant(torch.iinfo(dtype).max, dtype)
    return cast(make("min", variables, call("where", hit, cast(number, dtype), none)), torch.int64)


# ---------------------------------------------------------------- unrolling


def points(variables: tuple[Var, ...]) -> list[dict[Var, Index]]:
    """Every point of some loops, in order, as what each variable is there."""
    found: list[dict[Var, Index]] = [{}]
    for variable in variables:
        found = [{**p, variable: Index.constant(i)} for p in found for i in range(variable.extent)]
    return found


_COMBINING = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "logical_or", "all": "logical_and"}


def combined(kind: str, terms: list[Expr], dtype: torch.dtype) -> Expr:
    """The terms of a reduction as one expression, or what it gives for none.

    A balanced tree, which also rounds less than a chain; sums start at +0, which shows where all terms are -0.
    """
    if not terms:
        if kind not in ("sum", "prod", "any", "all"):
            raise UnsupportedError(f"reduction {kind} over no elements")
        return constant(1 if kind in ("prod", "all") else 0, dtype)
    if kind == "sum" and dtype.is_floating_point:
        terms = [*terms, constant(0, dtype)]
    last_first = kind in ("min", "max")  # of two zeros they take the second; eager's rows keep the first
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        made = [call(_COMBINING[kind], *((b, a) if last_first else (a, b))) for a, b in pairs]
        terms = made + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


# ---------------------------------------------------------------- splitting loops


def split_loops(nest: Nest, fixed: Collection[Var]) -> Nest:
    """Split a loop by each divisor of its bare variable, largest first, so that the divisions fold away.

    Loops in ``fixed`` stay as they are.
    """
    for _ in range(_MOST_SPLITS):
        found = {(q.numerator.single_variable, q.divisor) for q in _quotients(nest.indices())}
        splits = {(v, d) for v, d in found if v is not None and v in nest.loops and v not in fixed and d != 1}
        splits = {(v, d) for v, d in splits if divide_exactly(v.extent, d) not in (None, 1)}
        if not splits:
            break
        nest = _split(nest, *max(splits, key=lambda c: (c[0].name, *_sortable(c[1]))))
    return nest


def fresh(nest: Nest, stem: str, extent: Size) -> Var:
    """A variable whose name none in the nest has."""
    taken = {v.name for v in nest.loops} | {v.name for root in nest.roots for v in root.variables}
    number = 0
    while f"{stem}{number}" in taken:
        number += 1
    return Var(f"{stem}{number}", extent)


def _quotients(indices: Iterable[Index]) -> list[Div | Mod]:
    found: list[Div | Mod] = []
    for index in indices:
        for atom, _ in index.terms:
            if isinstance(atom, (Div, Mod)):
                found += [atom, *_quotients((atom.numerator,))]
    return found


def _sortable(value: Size) -> tuple[bool, int, str]:
    return (True, value, "") if isinstance(value, int) else (False, 0, str(value))


def _split(nest: Nest, variable: Var, divisor: Size) -> Nest:
    high = fresh(nest, "h", divide_exactly(variable.extent, divisor))
    low = fresh(nest, "l", divisor)

    def renewed(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(w for v in loops for w in ((high, low) if v is variable else (v,)))

    outer, inner = renewed(nest.outer), renewed(nest.inner)
    stores = substitute(nest, {variable: high.index * divisor + low}, (nest.inner, inner))
    return attrs.evolve(nest, outer=outer, inner=inner, stores=stores)
