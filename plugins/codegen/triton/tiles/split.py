"""Reductions with too few rows to fill a device: each row is split over programs, and a second stage combines.

All on the loop IR: one kernel becomes kernels that hand partial results on in scratch memory, and each of them is
tiled and emitted like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import sympy
import torch

from turret.graph.scalar_ops import neutral_value
from turret.ir.analysis.contraction import has_matrix_product
from turret.ir.conditions import operand_guard
from turret.ir.expr import Expr, call, constant, index_value, load, part, reduce, rewrite, size_value, walk
from turret.ir.index import Index, Size, Var, flatten, hinted, product, size, unflatten
from turret.ir.nest import Nest, combined, corrected_moment, has_exact_mean, plain_moment
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel, Store
from turret.plugins.codegen.triton.tiles.accesses import has_moments, is_along_row, moved_values
from turret.plugins.codegen.triton.tiles.kernel import DeviceProperties
from turret.plugins.codegen.triton.tiles.matrix import depth_parts, matrix_form
from turret.plugins.codegen.triton.tiles.normalise import normalise
from turret.plugins.codegen.triton.tiles.specialization import MULTIPLE
from turret.plugins.codegen.triton.tiles.split_kernel import Part, Stages, scratch_of, scratch_tensor
from turret.plugins.codegen.triton.tiles.tiling import (
    PERSISTENT_OUTER,
    VECTOR,
    WALKED_IN_PART,
    WalkedColumns,
    columns_to_any_row,
    walked_columns,
)

LEAST_WORK = 1 << 16
"""Elements below which one stage is faster than two, whatever the device."""
ENOUGH_ROWS = 256
"""Rows a multiprocessor that leave none without programs, whichever way they lie."""
LEAST_CHUNK = {True: 1024, False: 64}
"""Shortest part of a row worth a program: where the row is contiguous, and where the rows lie side by side."""
LEAST_GATHERED = 4096, 128
"""The same two where values are read from computed places, each of which is another part of memory."""
RESIDENT = 2
"""Programs that a multiprocessor should have, of contiguous rows; ``WalkedColumns`` has it for rows side by side."""
NARROWEST = 16
"""The fewest rows side by side that a program takes (two sectors of float32)."""
BLOCK_COLUMNS, BLOCKS, MOST_PARTS = 32, 12, 256
"""Rows side by side that are read once fit in blocks: how many a block takes, how many blocks a multiprocessor may
have, and into how many parts a row may be cut, so that the second stage has its parts in one block, too."""
SYMBOLIC_PARTS = 128
"""Parts of a row whose length nobody knows."""


def split(
    kernel: Kernel, declarations: dict[str, TensorDecl], properties: DeviceProperties, hints: Mapping[str, int]
) -> Stages:
    """The kernel in stages, or alone where its rows keep the device busy."""
    outer = tuple(v for v in kernel.outer if v.extent != 1)
    inner = tuple(v for v in kernel.inner if v.extent != 1)
    if not inner or not _is_splittable(kernel, inner):
        return Stages((kernel,))
    cut = _matrix_parts(kernel, declarations, properties, hints)
    if cut is None:
        cut = _cut(kernel, outer, inner, declarations, properties, hints)
    if cut.parts < 2:
        return Stages((kernel,))
    return _Splitter(attrs.evolve(kernel, outer=outer, inner=inner), declarations, cut).run()


@attrs.frozen
class _Cut:
    """Into how many parts each row is cut, 1 for none.

    ``interleaved``: a part has each so many-th element, and not neighbours.  ``flat``: parts end anywhere in the row,
    and not between two steps of its outermost loop alone.
    """

    parts: int
    interleaved: bool = False
    flat: bool = False


def _roots(stores: Iterable[Store]) -> list[Expr]:
    return [root for store in stores for root in store.roots]


def _is_splittable(kernel: Kernel, inner: tuple[Var, ...]) -> bool:
    if any(store.mode is not None for store in kernel.stores):
        return False
    found = [node for node in walk(*_roots(kernel.stores)) if node.op in ("reduce", "scan")]
    rows = [node for node in found if node.op == "reduce" and node.payload.variables == inner]
    others = [node for node in found if node not in rows]
    return bool(rows) and not any(
        node.op == "scan" or node.payload.kind in ("welford", "argmin", "argmax") for node in others
    )


def _matrix_parts(
    kernel: Kernel, declarations: dict[str, TensorDecl], properties: DeviceProperties, hints: Mapping[str, int]
) -> _Cut | None:
    """How to split the depth of a product of matrices; None for other kernels."""
    if not any(has_matrix_product(root) for root in _roots(kernel.stores)):
        return None
    nest = normalise(kernel, declarations, hints)
    form = matrix_form(nest)
    return None if form is None else _Cut(depth_parts(nest, form, properties))


def _cut(
    kernel: Kernel,
    outer: tuple[Var, ...],
    inner: tuple[Var, ...],
    declarations: dict[str, TensorDecl],
    properties: DeviceProperties,
    hints: Mapping[str, int],
) -> _Cut:
    """How to split each row."""
    rows = hinted(product(v.extent for v in outer), hints)
    row = hinted(product(v.extent for v in inner), hints)
    if rows is None or rows >= ENOUGH_ROWS * properties.multiprocessors:
        return _Cut(1)
    nest = normalise(kernel, declarations, hints)
    contiguous = bool(nest.inner) and is_along_row(nest)
    if row is None:
        return _Cut(SYMBOLIC_PARTS if rows <= 4 else 1)
    return (_cut_along if contiguous else _cut_across)(nest, inner[0].extent, rows, row, properties.multiprocessors)


def _cut_along(nest: Nest, head: Size, rows: int, row: int, multiprocessors: int) -> _Cut:
    """How to split contiguous rows."""
    gathered = any(at.values for _, at in nest.accesses()[0] if at.variables & frozenset(nest.inner))
    work, shortest = LEAST_GATHERED if gathered else (LEAST_WORK, LEAST_CHUNK[True])
    if rows * row < work:
        return _Cut(1)
    parts = _parts_of_rows(rows, row, hinted(head, nest.hints), shortest, multiprocessors)
    return _Cut(parts, flat=_is_flat(nest, parts, head))


def _cut_across(nest: Nest, head: Size, rows: int, row: int, multiprocessors: int) -> _Cut:
    """How to split rows side by side."""
    if rows * row < LEAST_WORK:
        return _Cut(1)
    parts = _parts_of_columns(nest, rows, row, hinted(head, nest.hints), multiprocessors)
    unit = _vectors_abreast(nest)
    if parts < 2 or unit is None or row < unit * LEAST_CHUNK[False]:
        return _Cut(parts)
    wanted = min(_missing(columns_to_any_row(nest), rows, multiprocessors), row // LEAST_CHUNK[False])
    return _Cut(max(unit, wanted // unit * unit), interleaved=True)


def _is_flat(nest: Nest, parts: int, head: Size) -> bool:
    """Whether parts of a known length should not be of whole steps of the row's outermost loop: they would begin
    where no vector of elements does, and indices are as simple without."""
    length = product(v.extent for v in nest.inner)
    if parts < 2 or not isinstance(length, int) or not isinstance(head, int):
        return False
    steps = -(-head // parts)
    if steps * parts == head and length // head * steps % MULTIPLE == 0:
        return False
    return all(
        index.is_affine and _is_dense(index, nest.inner)
        for index in nest.indices()
        if index.variables & frozenset(nest.inner)
    )


def _is_dense(index: Index, loops: tuple[Var, ...]) -> bool:
    """Whether an index that moves evenly counts the points of some loops, the last of which is the fastest."""
    step: Size = 1
    for variable in reversed(loops):
        if index.coefficient(variable) != step:
            return False
        step = size(step * variable.extent)
    return True


def _vectors_abreast(nest: Nest) -> int | None:
    """Of rows side by side that begin at other places of a vector one after another: how many steps along them lie a
    whole number of vectors apart.  None where all begin at vectors, or are no dense matrix, or not just reduced."""
    kinds = {node.payload.kind for node in nest.reductions}
    stored = any(store.variables & frozenset(nest.inner) for store in nest.stores)
    if len(nest.inner) != 1 or stored or kinds & {"welford", "argmin", "argmax"}:
        return None
    reads = [(tensor, at) for tensor, at in nest.accesses()[0] if at.variables >= frozenset(nest.loops)]
    if not reads or any(not _is_dense(at, (*nest.inner, *nest.outer)) for _, at in reads):
        return None
    unit = max(VECTOR // nest.tensors[tensor].dtype.itemsize for tensor, _ in reads)
    abreast = hinted(product(v.extent for v in nest.outer), nest.hints)
    return None if unit < 2 or abreast is None or abreast % unit == 0 else unit


def _parts_of_rows(rows: int, row: int, head: int | None, shortest: int, multiprocessors: int) -> int:
    """The parts of rows of which each takes a program, with ``shortest`` elements or more."""
    if rows >= multiprocessors:
        return 1
    return _near_divisor(min(-(-RESIDENT * multiprocessors // rows), row // shortest), head, row)


def _parts_of_columns(nest: Nest, columns: int, row: int, head: int | None, multiprocessors: int) -> int:
    """The parts of rows side by side: whole blocks where as many, or half as many, are; else of any length."""
    walked = walked_columns(nest)
    most = min(row // LEAST_CHUNK[False], MOST_PARTS)
    wanted = min(_missing(walked, columns, multiprocessors), most)
    # Rows that lie in one block: programs that take fewer of them spare the second launch.
    if wanted < 2 or (row <= PERSISTENT_OUTER and columns // NARROWEST >= multiprocessors):
        return 1
    if not isinstance(product(v.extent for v in nest.inner), int):
        return wanted  # the last block of each part is masked, whatever its length
    even = (p for p in range(wanted, wanted // 2, -1) if p > 1 and _cut_length(p, head, row) % p == 0)
    whole = (p for p in even if row // p % walked.rows == 0)
    found = _blocks(nest, walked, columns, row, head, multiprocessors) or next(whole, 0)
    return found or _near_divisor(min(_missing(WALKED_IN_PART, columns, multiprocessors), most), head, row)


def _blocks(nest: Nest, walked: WalkedColumns, columns: int, row: int, head: int | None, multiprocessors: int) -> int:
    """Parts that lie in one block each, where one value a point is read; 0 for too many.

    Values of 16 bits, in whole blocks of rows, are summed in less time where they are walked (see
    ``walked_columns``); 12544 x 1024 of float32 16.9 us in blocks, 19.3 us walked, its moments 20.7 and 32.8 us.
    """
    moved = moved_values(nest)
    if len(moved) != 1 or (walked != WALKED_IN_PART and moved[0].itemsize == 2 and not has_moments(nest)):
        return 0
    abreast = -(-columns // BLOCK_COLUMNS)
    wanted = max(-(-row // PERSISTENT_OUTER), min(-(-multiprocessors // abreast), row // LEAST_CHUNK[False]))
    most = min(MOST_PARTS, 2 * wanted, BLOCKS * multiprocessors // abreast)
    length = _cut_length(wanted, head, row)
    return next((parts for parts in range(max(wanted, 2), most + 1) if length % parts == 0), 0)


def _missing(walked: WalkedColumns, rows: int, multiprocessors: int) -> int:
    """How many times the programs that there are would be enough."""
    return walked.resident * multiprocessors // -(-rows // walked.columns)


def _near_divisor(wanted: int, head: int | None, row: int) -> int:
    """A divisor of the row's outermost size near the wanted number of parts, which spares each part its mask; of the
    whole row where that size is less; else that number."""
    length = _cut_length(wanted, head, row)
    return next((p for p in range(wanted, wanted // 2, -1) if p > 1 and length % p == 0), wanted)


def _cut_length(parts: int, head: int | None, row: int) -> int:
    """What is cut into parts: the row's outermost size, or all of the row where that is less than they are."""
    return row if head is None or head < parts else head


class _Splitter:
    def __init__(self, kernel: Kernel, declarations: dict[str, TensorDecl], cut: _Cut) -> None:
        change = operand_guard(_roots(kernel.stores), kernel.inner, declarations)
        if change is not None:
            kernel = attrs.evolve(kernel, stores=tuple(store.changed(change) for store in kernel.stores))
        self.kernel, self.declarations, self.parts = kernel, declarations, cut.parts
        self.outer, self.inner = kernel.outer, kernel.inner
        self.device = declarations[kernel.stores[0].tensor].device
        self.tensors: dict[str, TensorDecl] = {}
        self.kernels: list[Kernel] = []
        taken = {v.name for v in (*self.outer, *self.inner)}
        self.piece = Var(_free("part", taken), self.parts)
        # Where the row is interleaved, the elements behind the last that all parts have: how many, and where in a part.
        self.left: Size = 0
        self.last: dict[Var, Index] = {}
        if cut.interleaved:
            self._interleave(_free("piece", taken))
        else:
            self._cut(_free("piece", taken), cut.flat)

    def _interleave(self, name: str) -> None:
        """Choose the variable of the row inside a part, where parts have one element after another in turn."""
        (head,) = self.inner
        length = head.extent
        chunk = (
            length // self.parts if isinstance(length, int) else size(sympy.floor(length / sympy.Integer(self.parts)))
        )
        local = Var(name, chunk)
        self.mapping: dict[Var, Index] = {head: local.index * self.parts + self.piece.index}
        self.local: tuple[Var, ...] = (local,)
        self.left = size(length - chunk * self.parts)
        self.last = {head: Index.constant(size(chunk * self.parts)) + self.piece.index}
        self.part: Part | None = None
        self.even = self.masked = False
        # The rows that have one more lie side by side, and are counted as one number with the place in a row.
        abreast = product(v.extent for v in self.outer)
        place = flatten((self.piece.index, *self._rows()), (self.parts, *(v.extent for v in self.outer)))
        self.inside = call("lt", index_value(place), size_value(size(self.left * abreast)))

    def _cut(self, name: str, flat: bool) -> None:
        """Choose the variables of the row inside a part of neighbours."""
        head, *rest = self.inner
        linear = flat or not isinstance(head.extent, int) or head.extent < self.parts
        length: Size = product(v.extent for v in self.inner) if linear else head.extent
        ends = flat or not isinstance(length, int)  # a program's row ends where the whole one does
        chunk = self._length_in_part(length, ends)
        loops = (*self.outer, *self.inner)
        symbolic = not all(isinstance(v.extent, int) for v in loops)
        self.part = Part(self.piece, length if ends else None) if symbolic or ends else None
        local = Var(name, chunk)
        position = self.piece.index * chunk + local
        if linear:
            places = unflatten(position, tuple(v.extent for v in self.inner))
            self.mapping = dict(zip(self.inner, places, strict=True))
        else:
            self.mapping = {head: position}
        within = (local,) if linear else (local, *rest)
        if chunk == 1:  # reductions bind no loop that runs once
            self.mapping = {v: place.substitute({local: Index.constant(0)}) for v, place in self.mapping.items()}
            within = within[1:]
        self.local = within
        self.inside = call("lt", index_value(position), size_value(length))

    def _length_in_part(self, length: Size, ends: bool) -> Size:
        """How many elements a part has; of the last ones, where a part ``ends`` anywhere, fewer are of the row."""
        if ends:
            most = self.parts * MULTIPLE  # so Triton sees that each part begins where vectors are loaded
            self.even = self.masked = False
            return size(MULTIPLE * sympy.floor((length + most - 1) / sympy.Integer(most)))
        chunk = -(-length // self.parts)
        self.even = chunk * self.parts == length
        self.masked = not self.even
        return chunk

    def run(self) -> Stages:
        """All stages."""
        stores = self.kernel.stores
        if not self.even:
            stores = _replaced(stores, _plain_moments)
        early, stores = self._early(stores)
        while True:
            found = self._ready(stores)
            if not found:
                break
            stores = self._level(found, stores, early)
            early = []
        if stores:
            self.kernels.append(attrs.evolve(self.kernel, name=f"{self.kernel.name}_rest", stores=tuple(stores)))
        return Stages(tuple(self.kernels), self.tensors, tuple(map(scratch_of, self.tensors.values())), self.part)

    def _early(self, stores: tuple[Store, ...]) -> tuple[list[Store], tuple[Store, ...]]:
        """Stores that can go along with the first stage: no later stage reads the row again."""
        inner = set(self.inner)
        along = [s for s in stores if inner & frozenset().union(*(c.variables for c in s.coords))]
        if not along or any(self._is_row(n) for n in walk(*_roots(along))):
            return [], stores
        if any(self._is_row(m) for n in walk(*_roots(stores)) if self._is_row(n) for m in walk(*n.args)):
            return [], stores
        return along, tuple(s for s in stores if s not in along)

    def _is_row(self, node: Expr) -> bool:
        return node.op == "reduce" and node.payload.variables == self.inner

    def _ready(self, stores: Iterable[Store]) -> list[Expr]:
        """Reductions along the row whose operands contain none."""
        rows = [node for node in walk(*_roots(stores)) if self._is_row(node)]
        return [node for node in rows if not any(self._is_row(m) for a in node.args for m in walk(a))]

    def _level(self, found: list[Expr], stores: tuple[Store, ...], early: list[Store]) -> tuple[Store, ...]:
        """Two stages for reductions that depend on no other: returns the stores that are left, reading results."""
        partial: list[Store] = [self._in_part(store) for store in early]
        finals: dict[Expr, Expr] = {}
        for node in found:
            self._partials(node, partial, finals)
        self.kernels.append(
            attrs.evolve(
                self.kernel,
                name=f"{self.kernel.name}_parts",
                outer=(*self.outer, self.piece),
                inner=self.local,
                stores=tuple(partial),
            )
        )
        results: list[Store] = []
        done: list[Store] = []
        for store in stores:
            if self._waits(store, finals):
                continue
            done.append(store)
            results += _replaced([store], finals.get)
        left = [store for store in stores if store not in done]
        named: dict[Expr, Expr] = {}
        for node in walk(*_roots(left)):
            if node in finals:
                decl = self._tensor((), node.dtype)
                results.append(Store(decl.name, self._rows(), finals[node]))
                named[node] = load(decl.name, self._rows(), node.dtype)
        self.kernels.append(
            attrs.evolve(self.kernel, name=f"{self.kernel.name}_whole", inner=(self.piece,), stores=tuple(results))
        )
        return _replaced(left, named.get)

    def _waits(self, store: Store, finals: dict[Expr, Expr]) -> bool:
        """Whether a store needs the row itself, or reductions of a later level."""
        if frozenset(self.inner) & frozenset().union(
            *(c.variables for c in store.coords), *(root.variables for root in _roots([store]))
        ):
            return True
        later = [n for n in walk(*_roots([store])) if self._is_row(n) and n not in finals]
        return any(
            not (n.payload.kind == "welford" and Expr.make("part", (n,), n.dtype, "mean") in finals) for n in later
        )

    # ------------------------------------------------------------ partial results

    def _rows(self) -> tuple[Index, ...]:
        return tuple(v.index for v in self.outer)

    def _tensor(self, extra: tuple[Size, ...], dtype: torch.dtype) -> TensorDecl:
        shape = (*extra, *(v.extent for v in self.outer))
        decl = scratch_tensor(f"{self.kernel.name}.split{len(self.tensors)}", shape, dtype, self.device)
        self.tensors[decl.name] = decl
        return decl

    def _moved(self, expr: Expr) -> Expr:
        return rewrite(expr, self.mapping)

    def _in_part(self, store: Store) -> Store:
        """A store at a point of the row, made at that point of its part."""
        condition = None if store.condition is None else self._moved(store.condition)
        if self.masked:
            false = constant(False, torch.bool)
            condition = self.inside if condition is None else call("masked", self.inside, condition, false)
        coords = tuple(c.substitute(self.mapping, self._moved) for c in store.coords)
        expr = self._moved(store.expr)
        expr = call("masked", self.inside, expr, constant(0, expr.dtype)) if self.masked else expr
        return attrs.evolve(store, coords=coords, expr=expr, condition=condition)

    def _operand(self, expr: Expr, neutral: float | int) -> Expr:
        moved = self._moved(expr)
        return call("masked", self.inside, moved, constant(neutral, moved.dtype)) if self.masked else moved

    def _hand_on(self, expr: Expr, partial: list[Store]) -> Expr:
        """Store a part's result; its load in the second stage."""
        decl = self._tensor((self.parts,), expr.dtype)
        coords = (self.piece.index, *self._rows())
        partial.append(Store(decl.name, coords, expr))
        return load(decl.name, coords, expr.dtype)

    def _partials(self, node: Expr, partial: list[Store], finals: dict[Expr, Expr]) -> None:
        """Stores of the parts of one reduction, and what the whole is made of them."""
        kind, over = node.payload.kind, (self.piece,)
        if kind == "welford":
            self._moments(node, partial, finals)
            return
        value = node.args[0]
        neutral = neutral_value(kind, value.dtype)
        operand = self._operand(value, neutral)
        if kind in ("argmin", "argmax"):
            number = self._operand(node.args[1], torch.iinfo(torch.int64).max)
            best = self._hand_on(reduce("min" if kind == "argmin" else "max", self.local, operand), partial)
            at = self._hand_on(Expr.make("reduce", (operand, number), torch.int64, self._over(node)), partial)
            finals[node] = reduce(kind, over, best, at)
        else:
            own = reduce(kind, self.local, operand)
            if self.left != 0:
                own = combined(kind, [own, self._behind(value, neutral)], own.dtype)
            finals[node] = reduce(kind, over, self._hand_on(own, partial))

    def _behind(self, value: Expr, neutral: float | int) -> Expr:
        """What a part has of the elements behind the last that all parts have."""
        return call("masked", self.inside, rewrite(value, self.last), constant(neutral, value.dtype))

    def _over(self, node: Expr):
        return attrs.evolve(node.payload, variables=self.local)

    def _moments(self, node: Expr, partial: list[Store], finals: dict[Expr, Expr]) -> None:
        """Means and squares of parts of equal length: the whole's mean is theirs, its squares add their distances.

        Both are corrected as in ``plain_moment``, where that is needed.
        """
        dtype, over = node.dtype, (self.piece,)
        own = Expr.make("reduce", (self._moved(node.args[0]),), dtype, self._over(node))
        means, squares = (self._hand_on(part(own, which), partial) for which in ("mean", "m2"))
        count = size_value(product(v.extent for v in self.local), dtype)
        parts = constant(float(self.parts), dtype)
        near = call("div", reduce("sum", over, means), parts)
        apart = call("sub", means, near)
        distances = call("mul", count, call("square", apart))
        total = reduce("sum", over, call("add", squares, distances))
        if has_exact_mean(node):
            finals.update({part(node, "mean"): near, part(node, "m2"): total})
            return
        rest = reduce("sum", over, apart)
        for which in ("mean", "m2"):
            corrected = corrected_moment(which, near, call("mul", count, rest), call("div", rest, parts), total)
            finals[part(node, which)] = corrected


def _replaced(stores: Iterable[Store], replace: Callable[[Expr], Expr | None]) -> tuple[Store, ...]:
    return tuple(store.changed(lambda expr: rewrite(expr, replace=replace)) for store in stores)


def _plain_moments(node: Expr) -> Expr | None:
    """Welford as sums, for parts of unequal length."""
    return plain_moment(node) if node.op == "part" and node.args[0].op == "reduce" else None


def _free(stem: str, taken: set[str]) -> str:
    number = 0
    while f"{stem}{number}" in taken:
        number += 1
    return f"{stem}{number}"
