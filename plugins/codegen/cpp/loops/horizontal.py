"""Rows with lanes along the row: partial results in an array of lanes, folded at the end of each phase.

The lanes are as many as it takes to hide the latency of the additions, and long sums are folded into a double
every few hundred elements a lane, so that they are more accurate than a running sum.  A split row is cut into
chunks that depend on its length alone: the result does not depend on the number of threads.
"""

from __future__ import annotations

from turret.ir.expr import Expr
from turret.ir.index import Var, product
from turret.plugins.codegen.cpp.emission.dtypes import accumulator, ctype, reduction_identity
from turret.plugins.codegen.cpp.emission.operators import combine_text
from turret.plugins.codegen.cpp.emission.scopes import Scope
from turret.plugins.codegen.cpp.loops.nested import SIMD, Blocks, Range, close_all, open_loop, open_tasks, work_of
from turret.plugins.codegen.cpp.loops.rows import RowEmitter, lane_type

FLUSH = 256
"""Additions that a lane does before its sum is folded away."""
CHUNKS = 256
"""Most chunks of a split row."""
CHUNK_ELEMENTS = 8192
"""Elements that a chunk of a split row should have at least."""


class Horizontal(RowEmitter):
    """Rows with lanes along the row; without vectors where a scan carries values from element to element."""

    def emit(self) -> None:
        """Write the whole nest."""
        emitter, lane = self.emitter, self.form.lane
        self.leading = tuple(v for v in self.nest.inner if v is not lane)
        work = work_of(emitter, self.nest.loops, self.cost)
        if self.form.split:
            scope = emitter.base
            for variable in self.nest.outer:
                scope = open_loop(emitter, scope, variable)
        else:
            scope, _ = open_tasks(emitter, emitter.base, self.nest.outer, None, work)
        freeing = [] if self.form.split else self._declare_kept(scope)
        for phase in range(self.last):
            self._phase(scope, phase, work)
            scope.level = phase + 1
        self._row_stores(scope, work)
        for store in self.end_stores:
            emitter.store(store, scope)
        scope.lines += freeing
        close_all(scope, emitter.base)

    def _declare_kept(self, scope: Scope) -> list[str]:
        count = product(v.extent for v in self.nest.inner)
        self.choose_kept(count if isinstance(count, int) else None)
        return self.declare_kept(scope, self.emitter.size(count), isinstance(count, int)) if self.kept_from else []

    # ------------------------------------------------------------ one phase of reductions

    def _phase(self, scope: Scope, phase: int, work: str | int) -> None:
        nodes = self.phases.get(phase, [])
        split = self.form.split
        totals = self._split_phase(scope, phase, work) if split else self._accumulate(scope, phase, None)
        for expr, total in zip(nodes, totals, strict=True):
            kind = ctype(expr.dtype)
            name = self.emitter.fresh("r")
            scope.line(f"const {kind.value} {name} = ({kind.value}){total};")
            scope.names[(expr, None)] = name

    def _split_phase(self, scope: Scope, phase: int, work: str | int) -> list[str]:
        """Every chunk of the row leaves partial results, which are combined in order."""
        emitter, nodes = self.emitter, self.phases.get(phase, [])
        first = (*self.leading, self.form.lane)[0]
        rest = product(v.extent for v in (*self.leading[1:], self.form.lane)) if self.leading else 1
        unit = max(1, CHUNK_ELEMENTS // rest) if isinstance(rest, int) and rest else 1
        step, chunks, chunk = emitter.fresh("step"), emitter.fresh("chunks"), emitter.fresh("c")
        count, workers = emitter.size(first.extent), emitter.fresh("workers")
        scope.line(f"const int64_t {step} = chunk_step({count}, {CHUNKS}, {unit});")
        scope.line(f"const int64_t {chunks} = ({count} + {step} - 1) / {step};")
        scope.line(f"const int {workers} = team(threads, {chunks}, {work});")
        partial = [emitter.fresh("part") for _ in nodes]
        for expr, name in zip(nodes, partial, strict=True):
            scope.line(f"{lane_type(accumulator(expr.payload, expr.dtype))} {name}[{CHUNKS}];")
        pragma = f"omp parallel for num_threads({workers}) schedule(static)"
        inside = Scope(scope, f"for (int64_t {chunk} = 0; {chunk} < {chunks}; {chunk}++)", pragma)
        low, high = emitter.fresh("a"), emitter.fresh("z")
        inside.line(f"const int64_t {low} = {chunk} * {step};")
        inside.line(f"const int64_t {high} = {low} + {step} < {count} ? {low} + {step} : {count};")
        for name, total in zip(partial, self._accumulate(inside, phase, Range(low, high)), strict=True):
            inside.line(f"{name}[{chunk}] = {total};")
        inside.close()
        totals = []
        for expr, name in zip(nodes, partial, strict=True):
            wide = accumulator(expr.payload, expr.dtype)
            total = emitter.fresh("total")
            scope.line(f"{lane_type(wide)} {total} = {reduction_identity(expr.payload, expr.dtype)};")
            step_text = combine_text(expr.payload, wide, total, f"{name}[{chunk}]")
            scope.line(f"for (int64_t {chunk} = 0; {chunk} < {chunks}; {chunk}++) {total} = {step_text};")
            totals.append(total)
        return totals

    def _accumulate(self, scope: Scope, phase: int, part: Range | None) -> list[str]:
        """Run over the row (or a part of its first loop) and leave every total in a variable of ``scope``."""
        nodes, emitter = self.phases.get(phase, []), self.emitter
        totals = []
        for expr in nodes:
            total = emitter.fresh("total")
            totals.append(total)
            wide = accumulator(expr.payload, expr.dtype)
            scope.line(f"{lane_type(wide)} {total} = {reduction_identity(expr.payload, expr.dtype)};")
        lanes = 1 if self.form.scans else self._lanes(phase)
        inside, lane_part, flush = scope, part, self._flush_depth(lanes, part)
        arrays: list[str] = []
        for depth, variable in enumerate(self.leading):
            if depth == flush:
                arrays = self._declare_lanes(inside, nodes, lanes)
                folded = inside
            inside = open_loop(emitter, inside, variable, part if depth == 0 else None)
            lane_part = None
        if flush >= len(self.leading):
            if flush > len(self.leading):
                inside, lane_part = self._open_flush(inside, lane_part, lanes)
            arrays = self._declare_lanes(inside, nodes, lanes)
            folded = inside
        self._lane_loops(inside, phase, lanes, lane_part, arrays)
        close_all(inside, folded)
        self._fold(folded, nodes, lanes, arrays, totals)
        close_all(folded, scope)
        return totals

    def _lanes(self, phase: int) -> int:
        """Enough lanes to hide latency where elements are cheap, few where code is long; a power of two."""
        cost = self.facts.total_cost(*(expr for expr, _ in self.roots(phase)))
        widest = max((ctype(expr.dtype).register_bytes for expr in self.phases.get(phase, [])), default=4)
        lanes = (256 if cost <= 4 else 128 if cost <= 12 else 64) // widest
        extent = self.form.lane.extent
        while isinstance(extent, int) and lanes > 8 and lanes > extent:
            lanes //= 2
        return lanes

    def _flush_depth(self, lanes: int, part: Range | None) -> int:
        """Before which leading loop lanes are declared; one past them all: before each piece of the lane loop."""
        count = 1
        loops = (*self.leading, self.form.lane)
        if self.form.scans:
            return len(self.leading)
        for depth in reversed(range(len(loops))):
            extent = loops[depth].extent
            if depth == 0 and part is not None:
                extent = -(-extent // CHUNKS) if isinstance(extent, int) else None
            if not isinstance(extent, int) or count * extent > FLUSH * lanes:
                return depth + 1
            count *= extent
        return 0

    def _open_flush(self, scope: Scope, part: Range | None, lanes: int) -> tuple[Scope, Range]:
        emitter = self.emitter
        low, high = ("0", emitter.size(self.form.lane.extent)) if part is None else (part.low, part.high)
        name, end, step = emitter.fresh("f"), emitter.fresh("z"), FLUSH * lanes
        inside = Scope(scope, f"for (int64_t {name} = {low}; {name} < {high}; {name} += {step})")
        if part is None and isinstance(self.form.lane.extent, int) and self.form.lane.extent % step == 0:
            inside.line(f"const int64_t {end} = {name} + {step};")
        else:
            inside.line(f"const int64_t {end} = {name} + {step} < {high} ? {name} + {step} : {high};")
        return inside, Range(name, end)

    def _declare_lanes(self, scope: Scope, nodes: list[Expr], lanes: int) -> list[str]:
        names = []
        for expr in nodes:
            name, identity = self.emitter.fresh("lanes"), reduction_identity(expr.payload, expr.dtype)
            scope.line(f"{lane_type(ctype(expr.dtype))} {name}[{lanes}];")
            scope.line(f"for (int i = 0; i < {lanes}; i++) {name}[i] = {identity};")
            names.append(name)
        return names

    def _fold(self, scope: Scope, nodes: list[Expr], lanes: int, arrays: list[str], totals: list[str]) -> None:
        for expr, name, total in zip(nodes, arrays, totals, strict=True):
            kind, wide = ctype(expr.dtype), accumulator(expr.payload, expr.dtype)
            element = lane_type(kind)
            step = combine_text(expr.payload, kind, "a", "b")
            folded = f"fold_lanes<{lanes}>({name}, []({element} a, {element} b) -> {element} {{ return {step}; }})"
            value = f"({lane_type(wide)}){folded}" if lane_type(wide) != element else folded
            scope.line(f"{total} = {combine_text(expr.payload, wide, total, value)};")

    def _lane_loops(self, scope: Scope, phase: int, lanes: int, part: Range | None, arrays: list[str]) -> None:
        """Whole groups of lanes, then what is left of the row."""
        emitter, lane = self.emitter, self.form.lane
        low, high = ("0", emitter.size(lane.extent)) if part is None else (part.low, part.high)
        if self.form.scans:
            self._scan_states(scope, phase)
            body = open_loop(emitter, scope, lane, part)
            self._body(body, phase, arrays, "0")
            body.close()
            return
        position, slot = emitter.fresh("j"), emitter.fresh("l")
        # Written as a number, what is left is one for kernels of other lengths, too (``plugins.codegen.cpp.merging``).
        left = str(lane.extent % lanes) if part is None and isinstance(lane.extent, int) else f"{high} - {position}"
        scope.line(f"int64_t {position} = {low};")
        group = Scope(scope, f"for (; {position} + {lanes} <= {high}; {position} += {lanes})")
        self._lane_body(group, phase, f"{lanes}", position, slot, arrays)
        group.close()
        if left != "0":
            self._lane_body(scope, phase, left, position, slot, arrays)

    def _lane_body(self, scope: Scope, phase: int, count: str, position: str, slot: str, arrays: list[str]) -> None:
        body = Scope(scope, f"for (int64_t {slot} = 0; {slot} < {count}; {slot}++)", SIMD)
        name = self.emitter.fresh("i")
        body.line(f"const int64_t {name} = {position} + {slot};")
        body.bind(self.form.lane, name)
        self._body(body, phase, arrays, slot)
        body.close()

    def _body(self, body: Scope, phase: int, arrays: list[str], slot: str) -> None:
        position = self._position(body)
        self.use_kept(body, phase, position)
        for expr, array in zip(self.phases.get(phase, []), arrays, strict=True):
            value = self.emitter.value(expr.args[0], body)
            step = combine_text(expr.payload, ctype(expr.dtype), f"{array}[{slot}]", value)
            body.line(f"{array}[{slot}] = {step};")
        self.fill_kept(body, phase, position)
        self.make_stores(body, phase)

    def _position(self, scope: Scope) -> str:
        text = ""
        for variable in self.nest.inner:
            name = scope.variable(variable)
            text = f"({text}) * {self.emitter.size(variable.extent)} + {name}" if text else name
        return text

    def _scan_states(self, scope: Scope, phase: int) -> None:
        for expr in self.scans(phase):
            kind, _ = expr.payload
            state = self.emitter.scan_states[expr] = self.emitter.fresh("state")
            identity = reduction_identity(kind, expr.dtype)
            scope.line(f"{accumulator(kind, expr.dtype).value} {state} = {identity};")

    # ------------------------------------------------------------ stores along the row

    def _row_stores(self, scope: Scope, work: str | int) -> None:
        if not self.stores_at(self.last):
            return
        emitter, lane = self.emitter, self.form.lane
        inside, part = scope, None
        if self.form.split:
            inside, part = open_tasks(emitter, scope, self.leading, self._blocks(lane), work)
        else:
            for variable in self.leading:
                inside = open_loop(emitter, inside, variable)
        if self.form.scans:
            self._scan_states(inside, self.last)
        body = open_loop(emitter, inside, lane, part, "" if self.form.scans else SIMD)
        self.use_kept(body, self.last, self._position(body))
        self.make_stores(body, self.last)
        close_all(body, scope)

    def _blocks(self, lane: Var) -> Blocks | None:
        return Blocks(lane, CHUNK_ELEMENTS) if not self.leading else None
