"""What horizontal and vertical rows have in common: phases, values kept between them, and the choice of form.

A row runs in phases.  Phase ``p`` computes the reductions whose operands need the results of ``p`` others one
after another (the maximum of a softmax, then the sum of its exponentials).  Stores along the row are part of the first
phase that can make them, which may be one more.  A value that several phases need is kept in a scratch array
where that pays.
"""

from __future__ import annotations

import attrs

from turret.ir.emit.emitter import Key
from turret.ir.expr import Expr, loads, walk
from turret.ir.index import Size, Var, product
from turret.ir.nest import FlatStore, Nest
from turret.plugins.codegen.cpp.emission.dtypes import CType, ctype
from turret.plugins.codegen.cpp.emission.emitter import Emitter
from turret.plugins.codegen.cpp.emission.facts import Facts
from turret.plugins.codegen.cpp.emission.scopes import Scope
from turret.plugins.codegen.cpp.loops.nested import static_extent, stride, vector_fitness

SCRATCH_BYTES = 256 * 1024
"""What a thread may keep of a row: it should stay in its second-level cache."""
LEAST_LANES = 8
"""Neighbouring rows that are worth their lanes where only they read memory side by side."""


@attrs.frozen
class RowForm:
    """How a nest with rows is written.

    ``vertical``: lanes along an outer loop, and a row is walked for a block of lanes at once.  Horizontal: lanes
    along the row.  ``split``: a row is long and rows are few, so threads share each row.
    """

    lane: Var
    vertical: bool
    split: bool
    scans: bool


def row_form(nest: Nest) -> RowForm:
    """Choose by what accesses are contiguous along, and by where there are enough iterations for threads."""
    scans = any(node.op == "scan" for node in walk(*nest.roots))
    along = max(reversed(nest.inner), key=lambda v: vector_fitness(nest, v))
    across = max(reversed(nest.outer), key=lambda v: vector_fitness(nest, v), default=None)
    least = 0.3 if scans else 1.2 * vector_fitness(nest, along)
    lane, vertical = nest.inner[-1] if scans else along, False
    if across is not None and (
        vector_fitness(nest, across) > least or (not scans and _is_contiguous_across_alone(nest, across, along))
    ):
        lane, vertical = across, True
    outer = product(static_extent(v, 4096) for v in nest.outer)
    inner = product(static_extent(v, 65536) for v in nest.inner)
    few = outer <= 16384 and inner >= 256 if vertical else outer <= 4 and inner >= 32768
    return RowForm(lane, vertical, few and outer * inner >= 65536 and not scans, scans)


def _is_contiguous_across_alone(nest: Nest, across: Var, along: Var) -> bool:
    """Whether what rows are made of is read side by side by neighbouring rows, and some of it by none along them: a
    matrix that is multiplied from the left.

    However seldom its place changes in all, it is read anew for each row of the other operand.
    """
    if static_extent(across, LEAST_LANES) < LEAST_LANES:
        return False
    offsets = [n.coords[0] for row in walk(*nest.roots) if row.op == "row" for n in loads(*row.args)]
    gathered = any(stride(offset, along) not in (0, 1) for offset in offsets)
    return gathered and all(stride(offset, across) in (0, 1) for offset in offsets)


class RowEmitter:
    """Phases of one nest; ``Horizontal`` and ``Vertical`` say how a phase's loops look."""

    def __init__(self, emitter: Emitter, form: RowForm) -> None:
        self.emitter, self.form, self.nest, self.facts = emitter, form, emitter.nest, emitter.facts
        self.inner = frozenset(self.nest.inner)
        self.row_stores = [s for s in self.nest.stores if self._in_row(s)]
        self.end_stores = [s for s in self.nest.stores if not self._in_row(s)]
        self.phases: dict[int, list[Expr]] = {}
        self.kept: dict[Expr, str] = {}
        self.kept_from: dict[Expr, int] = {}
        self._collect()
        self.last = max(self.phases, default=-1) + 1
        self.store_phase = {store: max(map(self.facts.level, store.roots)) for store in self.row_stores}
        self._delay_stores()

    @property
    def cost(self) -> int:
        """Cost of all phases on one element."""
        bodies = [row.args[0] for rows in self.phases.values() for row in rows]
        return self.facts.total_cost(*self.nest.roots, *bodies) + len(self.nest.stores)

    @property
    def several_loops(self) -> bool:
        """Whether rows are walked more than once."""
        return self.last > 1 or bool(self.stores_at(1))

    def _in_row(self, store: FlatStore) -> bool:
        needed = self.facts.index_variables(store.offset).union(*map(self.facts.variables, store.roots))
        return bool(needed & self.inner)

    # ------------------------------------------------------------ phases

    def _collect(self) -> None:
        """Find every reduction, and its phase."""
        for node in walk(*self.nest.roots):
            if node.op == "row":
                self.phases.setdefault(self.facts.level(node) - 1, []).append(node)

    def operands(self, key: Key) -> list[Key]:
        """What evaluating a value needs, with masks."""
        expr, mask = key
        if expr.op != "masked":
            return [(child, mask) for child in expr.children()]
        condition, inside, outside = expr.args
        return [(condition, mask), (inside, self.emitter.both(mask, condition)), (outside, None)]

    def roots(self, phase: int) -> list[Key]:
        """What the loop of a phase evaluates: operands of its reductions, and what it stores."""
        operands: list[Key] = [(expr.args[0], None) for expr in self.phases.get(phase, [])]
        return operands + [(root, None) for store in self.stores_at(phase) for root in store.roots]

    def stores_at(self, phase: int) -> list[FlatStore]:
        """Stores that the loop of a phase makes."""
        return [store for store in self.row_stores if self.store_phase[store] == phase]

    def _delay_stores(self) -> None:
        """Stores happen as soon as their values are there, but no later phase may read what they overwrite.

        A stored tensor may take over the memory of one that the kernel reads, element for element; only one of
        the same size can be meant.
        """
        moved = True
        while moved:
            moved = False
            loaded = {phase: self._row_loads(phase) for phase in range(self.last + 1)}
            for store, phase in self.store_phase.items():
                size = self._bytes(store.tensor)
                later = [q for q in range(phase + 1, self.last + 1) if any(self._bytes(t) == size for t in loaded[q])]
                if later:
                    self.store_phase[store], moved = later[-1], True

    def _row_loads(self, phase: int) -> set[str]:
        return {expr.tensor for expr, _ in self.reached(phase) if expr.op == "load"}

    def _bytes(self, tensor: str) -> Size:
        decl = self.nest.tensors[tensor]
        return product((*decl.shape, decl.dtype.itemsize))

    def reached(self, phase: int) -> list[Key]:
        """Every value of the row that a phase evaluates, users before operands."""
        found: dict[Key, None] = {}
        pending = [self.emitter.key(*root) for root in self.roots(phase)]
        while pending:
            key = pending.pop()
            if key in found or key[0].op == "row" or not self.facts.variables(key[0]) & self.inner:
                continue
            found[key] = None
            if key[0] not in self.kept_from or self.kept_from[key[0]] >= phase:
                pending += [self.emitter.key(*operand) for operand in self.operands(key)]
        return list(found)

    def scans(self, phase: int) -> list[Expr]:
        """Scans that a phase carries along."""
        return [expr for expr, _ in self.reached(phase) if expr.op == "scan"]

    # ------------------------------------------------------------ values kept between phases

    def choose_kept(self, row_bytes: int | None) -> None:
        """Decide what later phases need again; ``row_bytes``: bytes of a row of one byte elements, if known."""
        first: dict[Expr, int] = {}
        budget = SCRATCH_BYTES
        for phase in range(self.last + 1):
            for expr, mask in self.reached(phase):
                if mask is not None or expr.op in ("index", "scan"):
                    continue
                if expr not in first:
                    first[expr] = phase
                elif (
                    first[expr] < phase and expr not in self.kept_from and self.facts.is_expensive(expr, self.kept_from)
                ):
                    size = ctype(expr.dtype).register_bytes * (row_bytes or 1)
                    if size <= budget and not self._covered(expr, first[expr]):
                        budget -= size
                        self.kept_from[expr] = first[expr]

    def _covered(self, expr: Expr, phase: int) -> bool:
        """Whether every use of ``expr`` after ``phase`` is inside a value that is kept anyway."""
        return all((expr, None) not in self.reached(later) for later in range(phase + 1, self.last + 1))

    def declare_kept(self, scope: Scope, count: str, static: bool) -> list[str]:
        """Scratch arrays for the kept values; returns the lines that free them."""
        freeing = []
        for expr in self.kept_from:
            kind = lane_type(ctype(expr.dtype))
            name = self.kept[expr] = self.emitter.fresh("keep")
            if static:
                scope.line(f"{kind} {name}[{count}];")
                continue
            fits = f"{count} <= {SCRATCH_BYTES // 8}"
            scope.line(f"{kind} {name}_near[{fits} ? {count} : 1];")
            scope.line(f"{kind}* const {name} = {fits} ? {name}_near : allocate<{kind}>({count});")
            freeing.append(f"if ({name} != {name}_near) free({name});")
        return freeing

    def use_kept(self, body: Scope, phase: int, position: str) -> None:
        """Make values that earlier phases kept known in a loop body."""
        for expr, since in self.kept_from.items():
            if since < phase:
                body.names[(expr, None)] = f"{self.kept[expr]}[{position}]"

    def make_stores(self, body: Scope, phase: int) -> None:
        """Write what this phase stores along the row."""
        for store in self.stores_at(phase):
            self.emitter.store(store, body)

    def fill_kept(self, body: Scope, phase: int, position: str) -> None:
        """Keep what this phase is the first to compute."""
        for expr, since in self.kept_from.items():
            if since == phase:
                body.line(f"{self.kept[expr]}[{position}] = {self.emitter.value(expr, body)};")


def lane_type(kind: CType) -> str:
    """Type of a value in an array of lanes."""
    return "int32_t" if kind.kind == "bool" else kind.value


def row_facts(nest: Nest, form: RowForm) -> Facts:
    """Facts under which row reductions of a vertical form have one result for each lane."""
    return Facts(nest, frozenset((form.lane,)) if form.vertical else frozenset())
