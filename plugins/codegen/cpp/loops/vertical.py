"""Rows with lanes across rows: a block of neighbouring outer iterations walks its rows together.

Reductions accumulate in arrays with one element a lane, which stay in the first-level cache.  Where rows are long
and few (the sum of each column), chunks of the rows go to different threads; each leaves a row of partial
results, and these are combined in order.
"""

from __future__ import annotations

from turret.ir.emit.emitter import Key
from turret.ir.expr import Expr
from turret.ir.index import Var, product
from turret.plugins.codegen.cpp.emission.dtypes import accumulator, ctype, reduction_identity
from turret.plugins.codegen.cpp.emission.operators import combine_text
from turret.plugins.codegen.cpp.emission.scopes import Scope
from turret.plugins.codegen.cpp.loops.nested import SIMD, Blocks, Range, close_all, open_loop, open_tasks, work_of
from turret.plugins.codegen.cpp.loops.rows import SCRATCH_BYTES, RowEmitter, lane_type

FLUSH = 128
"""Additions after which a float sum is folded into a wider total."""
CHUNKS = 32
"""Most chunks of split rows."""
BLOCK = 512
"""Most lanes of a block."""
LEAST_BLOCK = 32
"""Fewest lanes of a block."""
NEAR_BYTES = 32 * 1024
"""What a block should hold of a row that several phases walk."""


class Vertical(RowEmitter):
    """Rows with lanes along an outer loop."""

    def emit(self) -> None:
        """Write the whole nest."""
        emitter, lane = self.emitter, self.form.lane
        others = tuple(v for v in self.nest.outer if v is not lane)
        work = work_of(emitter, self.nest.loops, self.cost)
        self.ready: dict[Expr, str] = {}
        if self.form.split and not self.several_loops:
            scope = emitter.base
            for variable in others:
                scope = open_loop(emitter, scope, variable)
            self._split(scope, work)
            close_all(scope, emitter.base)
            return
        self.choose_kept(self._kept_row())
        blocks = self._blocks(others)
        scope, part = open_tasks(emitter, emitter.base, others, blocks, work)
        self.part = part or Range("0", emitter.size(lane.extent))
        self.lanes = blocks.step if blocks else lane.extent
        freeing = self._declare_kept(scope)
        for phase in range(self.last):
            arrays = self._accumulate(scope, phase, None)
            self._results(scope, phase, arrays)
        self._row_stores(scope)
        self._end_stores(scope)
        scope.lines += freeing
        close_all(scope, emitter.base)

    def _blocks(self, others: tuple[Var, ...]) -> Blocks | None:
        """Lanes a block: enough blocks for threads, and what is kept of their rows within the cache."""
        extent = self.form.lane.extent
        count = product(v.extent for v in (self.form.lane, *others))
        step = BLOCK
        if isinstance(count, int):
            step = min(BLOCK, max(128, count // 16 // 64 * 64))
        row = product(v.extent for v in self.nest.inner)
        if isinstance(row, int) and self.several_loops:
            # Later phases should find the block's rows near, and what is kept of them must fit.
            lane_bytes = max(row, 1) * max(4, sum(ctype(e.dtype).register_bytes for e in self.kept_from))
            step = min(step, max(2 * LEAST_BLOCK, NEAR_BYTES // lane_bytes // LEAST_BLOCK * LEAST_BLOCK))
            step = max(LEAST_BLOCK, min(step, SCRATCH_BYTES // lane_bytes // LEAST_BLOCK * LEAST_BLOCK))
        if isinstance(extent, int) and extent <= step:
            return None
        return Blocks(self.form.lane, step)

    # ------------------------------------------------------------ kept values

    def _kept_row(self) -> int | None:
        """Elements of a row times the fewest lanes of a block."""
        count = product(v.extent for v in self.nest.inner)
        return count * LEAST_BLOCK if isinstance(count, int) else None

    def _declare_kept(self, scope: Scope) -> list[str]:
        if not self.kept_from:
            return []
        count = product(v.extent for v in self.nest.inner)
        return self.declare_kept(scope, f"{self.emitter.size(count)} * {self.lanes}", isinstance(count, int))

    def _position(self, scope: Scope) -> str:
        text = ""
        for variable in self.nest.inner:
            name = scope.variable(variable)
            text = f"({text}) * {self.emitter.size(variable.extent)} + {name}" if text else name
        return f"({text}) * {self.lanes} + {self._slot(scope)}"

    def _slot(self, scope: Scope) -> str:
        """Index of the lane within its block."""
        return f"{scope.variable(self.form.lane)} - {self.part.low}"

    # ------------------------------------------------------------ phases

    def _lane_loop(self, scope: Scope) -> Scope:
        """A loop over the lanes, in which results of finished phases have names."""
        body = open_loop(self.emitter, scope, self.form.lane, self.part, SIMD)
        slot = self.emitter.lane_slot = self._slot(body)
        for expr, name in self.ready.items():
            body.names[(expr, None)] = f"({ctype(expr.dtype).value}){name}[{slot}]"
        return body

    def _prepare(self, scope: Scope, phase: int) -> None:
        """Compute once a block what the row's loops need of each lane: means, scales and the like."""
        names = {expr: self.emitter.fresh("lane") for expr in self._needed_of_lanes(phase)}
        if not names:
            return
        for expr, name in names.items():
            scope.line(f"{lane_type(ctype(expr.dtype))} {name}[{self.lanes}];")
        body = self._lane_loop(scope)
        for expr, name in names.items():
            body.line(f"{name}[{self._slot(body)}] = {self.emitter.value(expr, body)};")
        body.close()
        self.ready |= names

    def _needed_of_lanes(self, phase: int) -> list[Expr]:
        """What the loops of a phase read that varies along lanes, not along the row, and is worth an array."""
        wanted: dict[Expr, None] = {}
        pending = [self.emitter.key(*root) for root in self.roots(phase)]
        seen: set[Key] = set()
        while pending:
            key = pending.pop()
            if key in seen or (key[1] is None and key[0] in self.ready):
                continue
            seen.add(key)
            variables = self.facts.variables(key[0])
            if self.form.lane in variables and not variables & self.inner and key[1] is None:
                if self.facts.total_cost(key[0]) > 1 and key[0].op not in ("index", "scan"):
                    wanted[key[0]] = None
                continue
            if key[0].op != "row":
                pending += [self.emitter.key(*operand) for operand in self.operands(key)]
        return list(wanted)

    def _accumulate(self, scope: Scope, phase: int, part: Range | None) -> list[str]:
        """Run over the rows of the block (or a part of the first loop); the arrays of totals."""
        self._prepare(scope, phase)
        nodes = self.phases.get(phase, [])
        flushed = self._needs_flush(part) and any(expr.payload in ("sum", "prod") for expr in nodes)
        totals = self._declare_arrays(scope, nodes, wide=flushed)
        inside = scope
        for depth, variable in enumerate(self.nest.inner[:-1]):
            inside = open_loop(self.emitter, inside, variable, part if depth == 0 else None)
        run = part if len(self.nest.inner) == 1 else None
        arrays, folded = totals, inside
        if flushed:
            folded, run = self._open_flush(inside, run)
            arrays = self._declare_arrays(folded, nodes, wide=False)
        row = open_loop(self.emitter, folded, self.nest.inner[-1], run)
        self._scan_states(scope, inside, phase)
        self._body(row, phase, arrays)
        close_all(row, folded)
        if flushed:
            self._fold(folded, nodes, arrays, totals)
        close_all(folded, scope)
        return totals

    def _body(self, row: Scope, phase: int, arrays: list[str]) -> None:
        body = self._lane_loop(row)
        position, slot = self._position(body), self._slot(body)
        self.use_kept(body, phase, position)
        for expr, array in zip(self.phases.get(phase, []), arrays, strict=True):
            value = self.emitter.value(expr.args[0], body)
            element = f"{array}[{slot}]"
            body.line(f"{element} = {combine_text(expr.payload, ctype(expr.dtype), element, value)};")
        self.fill_kept(body, phase, position)
        self.make_stores(body, phase)
        body.close()

    def _needs_flush(self, part: Range | None) -> bool:
        counts = [v.extent for v in self.nest.inner]
        if part is not None and isinstance(counts[0], int):
            counts[0] = -(-counts[0] // CHUNKS)
        count = product(counts)
        return not isinstance(count, int) or count > 2 * FLUSH

    def _declare_arrays(self, scope: Scope, nodes: list[Expr], *, wide: bool) -> list[str]:
        names = []
        for expr in nodes:
            kind = accumulator(expr.payload, expr.dtype) if wide else ctype(expr.dtype)
            name = self.emitter.fresh("lanes")
            scope.line(f"{lane_type(kind)} {name}[{self.lanes}];")
            identity = reduction_identity(expr.payload, expr.dtype)
            scope.line(f"for (int64_t i = 0; i < {self.part.high} - {self.part.low}; i++) {name}[i] = {identity};")
            names.append(name)
        return names

    def _open_flush(self, scope: Scope, run: Range | None) -> tuple[Scope, Range]:
        low, high = ("0", self.emitter.size(self.nest.inner[-1].extent)) if run is None else (run.low, run.high)
        name, end = self.emitter.fresh("f"), self.emitter.fresh("z")
        inside = Scope(scope, f"for (int64_t {name} = {low}; {name} < {high}; {name} += {FLUSH})")
        inside.line(f"const int64_t {end} = {name} + {FLUSH} < {high} ? {name} + {FLUSH} : {high};")
        return inside, Range(name, end)

    def _fold(self, scope: Scope, nodes: list[Expr], arrays: list[str], totals: list[str]) -> None:
        for expr, array, total in zip(nodes, arrays, totals, strict=True):
            wide = accumulator(expr.payload, expr.dtype)
            step = combine_text(expr.payload, wide, f"{total}[i]", f"({lane_type(wide)}){array}[i]")
            scope.line(f"#pragma {SIMD}")
            scope.line(f"for (int64_t i = 0; i < {self.part.high} - {self.part.low}; i++) {total}[i] = {step};")

    def _results(self, scope: Scope, phase: int, arrays: list[str]) -> None:
        """Give the results of a finished phase their names."""
        scope.level = phase + 1
        self.ready |= zip(self.phases.get(phase, []), arrays, strict=True)

    def _scan_states(self, scope: Scope, inside: Scope, phase: int) -> None:
        """Running values of scans: one a lane, or one for all where the scan does not depend on the lane."""
        for expr in self.scans(phase):
            kind, _ = expr.payload
            wide, identity = accumulator(kind, expr.dtype), reduction_identity(kind, expr.dtype)
            state = self.emitter.fresh("state")
            if self.form.lane not in self.facts.variables(expr):
                inside.line(f"{wide.value} {state} = {identity};")
                self.emitter.scan_states[expr] = state
                continue
            inside.line(f"{wide.value} {state}[{self.lanes}];")
            inside.line(f"for (int64_t i = 0; i < {self.part.high} - {self.part.low}; i++) {state}[i] = {identity};")
            self.emitter.scan_states[expr] = f"{state}[@]"

    # ------------------------------------------------------------ stores

    def _row_stores(self, scope: Scope) -> None:
        if not self.stores_at(self.last):
            return
        self._prepare(scope, self.last)
        row = scope
        for variable in self.nest.inner[:-1]:
            row = open_loop(self.emitter, row, variable)
        around = row
        row = open_loop(self.emitter, row, self.nest.inner[-1])
        self._scan_states(scope, around, self.last)
        body = self._lane_loop(row)
        self.use_kept(body, self.last, self._position(body))
        self.make_stores(body, self.last)
        close_all(body, scope)

    def _end_stores(self, scope: Scope) -> None:
        if not self.end_stores:
            return
        body = self._lane_loop(scope)
        for store in self.end_stores:
            self.emitter.store(store, body)
        body.close()

    # ------------------------------------------------------------ split rows

    def _split(self, scope: Scope, work: str | int) -> None:
        """Chunks of the rows in parallel, each over blocks of lanes; then the chunks' results in order."""
        emitter, lane, nodes = self.emitter, self.form.lane, self.phases[0]
        rows, width = emitter.size(self.nest.inner[0].extent), emitter.size(lane.extent)
        rest = product(v.extent for v in self.nest.inner[1:])
        unit = max(1, 64 // rest) if isinstance(rest, int) and rest else 1
        step, chunks = emitter.fresh("step"), emitter.fresh("chunks")
        scope.line(f"const int64_t {step} = chunk_step({rows}, {CHUNKS}, {unit});")
        count = f"({rows} + {step} - 1) / {step}"
        if not isinstance(self.nest.inner[0].extent, int):
            count = f"most(1, {count})"  # of no rows, one chunk says what a reduction of nothing gives
        scope.line(f"const int64_t {chunks} = {count};")
        partial = [emitter.fresh("part") for _ in nodes]
        types = [lane_type(accumulator(expr.payload, expr.dtype)) for expr in nodes]
        for name, kind in zip(partial, types, strict=True):
            scope.line(f"{kind}* const {name} = allocate<{kind}>({chunks} * {width});")
        blocks = Blocks(lane, BLOCK * 4) if not isinstance(lane.extent, int) or lane.extent > BLOCK * 4 else None
        task, number, self.part = self._open_chunks(scope, chunks, blocks, work)
        self.lanes = blocks.step if blocks else lane.extent
        low, high = emitter.fresh("a"), emitter.fresh("z")
        task.line(f"const int64_t {low} = {number} * {step};")
        task.line(f"const int64_t {high} = {low} + {step} < {rows} ? {low} + {step} : {rows};")
        arrays = self._accumulate(task, 0, Range(low, high))
        for name, array in zip(partial, arrays, strict=True):
            target = f"{name}[{number} * {width} + {self.part.low} + i]"
            task.line(f"for (int64_t i = 0; i < {self.part.high} - {self.part.low}; i++) {target} = {array}[i];")
        close_all(task, scope)
        self.part = Range("0", width)
        for expr, name in zip(nodes, partial, strict=True):
            wide = accumulator(expr.payload, expr.dtype)
            step_text = combine_text(expr.payload, wide, f"{name}[i]", f"{name}[c * {width} + i]")
            scope.line(f"for (int64_t c = 1; c < {chunks}; c++) {{")
            scope.line(f"#pragma {SIMD}")
            scope.line(f"  for (int64_t i = 0; i < {width}; i++) {name}[i] = {step_text};")
            scope.line("}")
        self.ready = {}
        self._results(scope, 0, partial)
        self._end_stores(scope)
        scope.lines += [f"free({name});" for name in partial]

    def _open_chunks(
        self, scope: Scope, chunks: str, blocks: Blocks | None, work: str | int
    ) -> tuple[Scope, str, Range]:
        """Tasks over all chunks, and blocks of lanes in each; the number of the chunk and the block's lanes."""
        emitter = self.emitter
        workers, number = emitter.fresh("workers"), emitter.fresh("c")
        scope.line(f"const int {workers} = team(threads, {chunks}, {work});")
        pragma = f"omp parallel for num_threads({workers}) schedule(static)"
        task = Scope(scope, f"for (int64_t {number} = 0; {number} < {chunks}; {number}++)", pragma)
        if blocks is None:
            return task, number, Range("0", emitter.size(self.form.lane.extent))
        low, high, end = emitter.fresh("a"), emitter.fresh("z"), emitter.size(self.form.lane.extent)
        inside = Scope(task, f"for (int64_t {low} = 0; {low} < {end}; {low} += {blocks.step})")
        inside.line(f"const int64_t {high} = {low} + {blocks.step} < {end} ? {low} + {blocks.step} : {end};")
        return inside, number, Range(low, high)
