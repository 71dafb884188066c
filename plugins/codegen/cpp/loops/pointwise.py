"""Kernels without reductions: loops in the order of memory, lanes along the loop that most accesses follow.

Where some loads are contiguous along another loop than the lanes, both loops are cut into square tiles and those
loads go through a small buffer that is filled along their own direction.
"""

from __future__ import annotations

import attrs

from turret.ir.expr import Expr, loads, walk
from turret.ir.index import Index, Var
from turret.ir.nest import Nest
from turret.plugins.codegen.cpp.emission.dtypes import ctype
from turret.plugins.codegen.cpp.emission.emitter import Emitter
from turret.plugins.codegen.cpp.emission.scopes import Scope
from turret.plugins.codegen.cpp.loops.nested import (
    SIMD,
    Blocks,
    Range,
    block_range,
    close_all,
    open_loop,
    open_tasks,
    static_extent,
    stride,
    vector_fitness,
    work_of,
)

LEAST_TILE, MOST_TILE = 32, 128
TILE_BYTES = 128 * 1024
TASK_WORK = 32768
"""Element operations that a task should have at least."""


@attrs.frozen
class _Order:
    """The loops of a pointwise kernel: shared by threads, serial, and the lanes (None: no vectors)."""

    parallel: tuple[Var, ...]
    serial: tuple[Var, ...]
    lane: Var | None
    blocks: Blocks | None


def emit_pointwise(emitter: Emitter) -> None:
    """Write the loops and stores of a nest without rows."""
    nest = emitter.nest
    if not nest.outer:
        for store in nest.stores:
            emitter.store(store, emitter.base)
        return
    cost = emitter.facts.total_cost(*nest.roots) + len(nest.stores)
    work = work_of(emitter, nest.outer, cost)
    scattered = [store for store in nest.stores if store.mode is not None]
    if scattered:
        order = _scatter_order(nest, [_independent(store.coords) for store in scattered])
    else:
        lane = max(reversed(nest.outer), key=lambda v: vector_fitness(nest, v))
        across, transposed = _transposed(emitter, lane)
        if across is not None:
            _emit_tiled(emitter, lane, across, transposed, work)
            return
        order = _order(nest, lane, cost)
    scope, part = open_tasks(emitter, emitter.base, order.parallel, order.blocks, work)
    for variable in order.serial:
        scope = open_loop(emitter, scope, variable)
    if order.lane is not None:
        scope = open_loop(emitter, scope, order.lane, part, SIMD)
    for store in nest.stores:
        emitter.store(store, scope)
    close_all(scope, emitter.base)


def _order(nest: Nest, lane: Var, cost: int) -> _Order:
    others = [v for v in nest.outer if v is not lane]
    step = max(512, TASK_WORK // cost // 64 * 64)
    blocks = _blocks(lane, step)
    size = (static_extent(lane, step) if blocks is None else step) * cost
    serial: list[Var] = []
    while others and size < TASK_WORK and isinstance(others[-1].extent, int):
        size *= others[-1].extent
        serial.insert(0, others.pop())
    return _Order(tuple(others), tuple(serial), lane, blocks)


def _blocks(lane: Var, step: int) -> Blocks | None:
    """Blocks of about ``step`` elements, even ones where possible."""
    extent = lane.extent
    if not isinstance(extent, int):
        return Blocks(lane, step)
    if extent < 2 * step:
        return None
    even = [s for s in range(step // 2 // 64 * 64, 2 * step, 64) if s and extent % s == 0]
    return Blocks(lane, min(even, key=lambda s: abs(s - step)) if even else step)


# ---------------------------------------------------------------- scatters


def _independent(coords: tuple[Index, ...]) -> frozenset[Var]:
    """Loops of which different iterations hit different elements."""
    return frozenset(v for v in (coord.single_variable for coord in coords) if v is not None)


def _scatter_order(nest: Nest, independent: list[frozenset[Var]]) -> _Order:
    """Dependent loops stay serial and in order inside independent ones, so that the result is deterministic."""
    free = frozenset.intersection(*independent)
    lanes = [v for v in nest.outer if v in free and vector_fitness(nest, v) > 0.3]
    lane = max(reversed(lanes), key=lambda v: vector_fitness(nest, v)) if lanes else None
    parallel = tuple(v for v in nest.outer if v in free and v is not lane)
    serial = tuple(v for v in nest.outer if v not in free)
    blocks = None
    if lane is not None and not parallel:
        extent = static_extent(lane, 4096)
        blocks = _blocks(lane, max(64, -(-extent // 16) // 64 * 64))
    return _Order(parallel, serial, lane, blocks)


# ---------------------------------------------------------------- transposed loads


def _transposed(emitter: Emitter, lane: Var) -> tuple[Var | None, list[Expr]]:
    """The other loop along which most loads that are strided along the lanes are contiguous, and those loads."""
    nest = emitter.nest
    best: tuple[Var | None, list[Expr]] = (None, [])
    if static_extent(lane, LEAST_TILE) < 8 or any(node.op in ("reduce", "masked") for node in walk(*nest.roots)):
        return best
    strided = [
        n for n in loads(*nest.roots) if stride(n.coords[0], lane) not in (None, 0, 1) and not n.coords[0].values
    ]
    for variable in nest.outer:
        if variable is not lane and static_extent(variable, LEAST_TILE) >= 8:
            found = [n for n in strided if stride(n.coords[0], variable) == 1]
            if len(found) > len(best[1]):
                best = variable, found
    return best


def _tile_width(lane: Var, across: Var, transposed: list[Expr]) -> int:
    """Wide tiles use more of each page that they touch; all buffers together stay in the second-level cache, and
    there are tiles enough for threads."""
    width = MOST_TILE
    loaded = sum(ctype(load.dtype).bits // 8 for load in transposed)
    while width > LEAST_TILE and (
        static_extent(across, 4096) < 16 * width
        or static_extent(lane, 4096) < width
        or width * width * loaded > TILE_BYTES
    ):
        width //= 2
    return width


def _emit_tiled(emitter: Emitter, lane: Var, across: Var, transposed: list[Expr], work: str | int) -> None:
    width = _tile_width(lane, across, transposed)
    others = tuple(v for v in emitter.nest.outer if v is not lane and v is not across)
    task, rows = open_tasks(emitter, emitter.base, others, Blocks(across, width), work)
    assert rows is not None
    number = emitter.fresh("v")
    blocks = Blocks(lane, width)
    end = emitter.size(lane.extent)
    count = blocks.count or f"({end} + {width - 1}) / {width}"
    tile = Scope(task, f"for (int64_t {number} = 0; {number} < {count}; {number}++)")
    columns = block_range(emitter, tile, blocks, number)
    names = {load: _fill_tile(emitter, tile, load, (across, rows), (lane, columns), width) for load in transposed}
    row = open_loop(emitter, tile, across, rows)
    column = open_loop(emitter, row, lane, columns, SIMD)
    position = f"({row.variable(across)} - {rows.low}) * {width} + {column.variable(lane)} - {columns.low}"
    for load, name in names.items():
        column.names[(load, None)] = ctype(load.dtype).load(f"{name}[{position}]")
    for store in emitter.nest.stores:
        emitter.store(store, column)
    close_all(column, emitter.base)


def _fill_tile(
    emitter: Emitter, scope: Scope, load: Expr, along: tuple[Var, Range], lanes: tuple[Var, Range], width: int
) -> str:
    """A buffer with the tile's elements of one load, lanes innermost; read in the order in which they lie."""
    name, corner = emitter.fresh("tile"), Scope(scope)
    across, rows = along
    lane, columns = lanes
    scope.line(f"{ctype(load.dtype).element} {name}[{width * width}];")
    corner.bind(across, rows.low)
    corner.bind(lane, columns.low)
    pointer, offset = emitter.pointer(load.tensor), emitter.index(load.coords[0], corner)
    step = emitter.size(load.coords[0].coefficient(lane))
    counts = ", ".join(f"{part.high} - {part.low}" for part in (rows, columns))
    inside = f"if (checked_tile({offset}, {step}, {counts}, {emitter.extent(load.tensor)})) "
    fill = f"fill_tile<{width}>({name}, {pointer} + {offset}, {step}, {counts});"
    scope.line(inside + fill if emitter.check_bounds else fill)
    return name
