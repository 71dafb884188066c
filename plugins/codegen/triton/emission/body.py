"""The body of a kernel: where each program stands in the grid, the passes over the row, and the stores."""

from __future__ import annotations

import functools

from turret.ir.expr import Expr
from turret.ir.index import Var, product, unflatten
from turret.ir.nest import FlatStore
from turret.plugins.codegen.triton.emission.edges import open_rows
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.matrix import matrix_grid, write_matrix
from turret.plugins.codegen.triton.emission.operators import scalar_text
from turret.plugins.codegen.triton.emission.passes import write_passes
from turret.plugins.codegen.triton.emission.reductions import RowWriter
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tile_loops.body import tile_loop_grid, write_tile_loop
from turret.plugins.codegen.triton.tiles.dtypes import triton_type
from turret.plugins.codegen.triton.tiles.sizes import size_text
from turret.plugins.codegen.triton.tiles.specialization import MULTIPLE, is_multiple
from turret.plugins.codegen.triton.tiles.tiling import Tile, large_steps

FEWEST = 1 << 16
"""Elements of a known number from which on it is worth a second body that their last block alone is masked."""
ATOMIC_ADD = frozenset(("fp16", "bf16", "fp32", "fp64", "i32", "i64"))
ATOMIC_ORDER = frozenset(("i32", "i64"))
"""Types that the hardware adds, and finds minima and maxima of, atomically in memory (floats would lose NaN)."""


def has_atomic(mode: str, short: str) -> bool:
    """Whether an update of a scatter can be one atomic instruction."""
    return short in (ATOMIC_ADD if mode == "add" else ATOMIC_ORDER if mode in ("min", "max") else ())


def write_body(emitter: Emitter) -> None:
    """Write everything between the kernel's signature and its end."""
    tiling = emitter.tiling
    if tiling.program is not None:
        _sweep(emitter, tiling.program)
        return
    if tiling.matrix is not None:
        store = functools.partial(_store_all, emitter)
        if tiling.loop is None:
            write_matrix(emitter, tiling.matrix, store)
        else:
            write_tile_loop(emitter, tiling.matrix, tiling.loop, store)
        return
    _open_tiles(emitter)
    scope = emitter.base
    if tiling.serial:
        _store_in_order(emitter)
        return
    row = tiling.row
    stores = tiling.stores
    if _has_whole_blocks(emitter):
        _store_by_block(emitter)
        return
    if row is not None:
        writer = RowWriter(emitter)
        if not tiling.persistent:
            along = [store for store in stores if row.variable in store.variables]
            stores = tuple(store for store in stores if row.variable not in store.variables)
            write_passes(writer, along, lambda chosen, inside: _store_all(emitter, chosen, inside))
        elif tiling.edges is not None:
            along = [store for store in stores if row.variable in store.variables]
            stores = tuple(store for store in stores if row.variable not in store.variables)
            _store_parts(emitter, along)
            scope = emitter.rows_loop or scope
    _store_all(emitter, list(stores), scope)
    if emitter.rows_loop is not None:
        emitter.rows_loop.close()


def _has_whole_blocks(emitter: Emitter) -> bool:
    """Whether there is one dimension, not a row, whose end may cut through what one instruction loads."""
    tiling = emitter.tiling
    if len(tiling.tiles) != 1 or tiling.row is not None:
        return False
    (tile,) = tiling.tiles
    if isinstance(tile.extent, int):
        ((_, steps),) = large_steps(tiling)
        if tile.extent < FEWEST or 1 not in steps:
            return False
    return not is_multiple(tile.extent, MULTIPLE, emitter.divisible)


def _store_by_block(emitter: Emitter) -> None:
    """All stores, without masks where a block lies within its dimension: masks would part what is loaded at once."""
    (tile,) = emitter.tiling.tiles
    last = f"tl.program_id(0){'.to(tl.int64)' if emitter.wide else ''} == {emitter.size(tile.extent)} // {tile.block}"
    for header, whole in ((f"if {last}:", ()), ("else:", (tile.variable,))):
        scope = Scope(emitter.base, header, whole)
        scope.variables[tile.variable] = tile.letter
        _store_all(emitter, list(emitter.tiling.stores), scope)
        scope.close()


def grid_texts(emitter: Emitter) -> tuple[str, ...]:
    """How many programs run, as Python text over size symbols and block sizes; the second number is that of parts."""
    part = emitter.tiling.part
    return (_tiles_text(emitter),) if part is None else (_tiles_text(emitter), str(part.number.extent))


def _tiles_text(emitter: Emitter) -> str:
    if emitter.tiling.matrix is not None:
        grid = matrix_grid if emitter.tiling.loop is None else tile_loop_grid
        return grid(emitter, emitter.tiling.matrix)
    if emitter.tiling.program is not None:
        return size_text(product(v.extent for v in emitter.tiling.program), lambda name: name)
    edges = emitter.tiling.edges
    if edges is not None and edges.walked:
        rows = size_text(emitter.tiling.tiles[0].extent, lambda name: name)
        return f"min(PROGRAMS, cdiv({rows}, {edges.unit}) * {edges.unit})"
    counts = [
        f"cdiv({size_text(t.extent, lambda name: name)}, {t.block})" for t in emitter.tiling.tiles if not t.is_row
    ]
    return " * ".join(counts) or "1"


def _open_tiles(emitter: Emitter) -> None:
    """Bind every tile variable that is not walked in a loop."""
    tiling, base, row = emitter.tiling, emitter.base, emitter.tiling.row
    if row is not None and tiling.edges is not None:
        open_rows(emitter, tiling.tiles[0], row, tiling.edges, _range(emitter, row))
        return
    placed = [tile for tile in tiling.tiles if not tile.is_row]
    rest = "tl.program_id(0)"
    if emitter.wide:
        rest += ".to(tl.int64)"
    for position, tile in reversed(list(enumerate(placed))):
        number = rest
        if position:
            base.line(f"{tile.letter}count = tl.cdiv({emitter.size(tile.extent)}, {tile.block})")
            number = f"({rest}) % {tile.letter}count"
            base.line(f"{tile.letter}rest = ({rest}) // {tile.letter}count")
            rest, before = f"{tile.letter}rest", rest
            number = f"({before}) % {tile.letter}count"
        base.line(f"{tile.letter} = ({number}) * {tile.block} + {_range(emitter, tile)}")
        base.variables[tile.variable] = tile.letter
    if tiling.part is not None:
        base.line(f"part = tl.program_id(1){'.to(tl.int64)' if emitter.wide else ''}")
        base.variables[tiling.part.number] = "part"
    if row is not None:
        name = "r" if tiling.persistent else "rbase"
        base.line(f"{name} = {_range(emitter, row)}")
        if tiling.persistent:
            base.variables[row.variable] = "r"
    if row is not None and tiling.half_filled:
        base.line(f"tl.assume({emitter.size(row.extent)} > {row.block} // 2)")


def _sweep(emitter: Emitter, program: tuple[Var, ...]) -> None:
    """Each program walks its rows in blocks: stores what belongs to a row, and adds up what is summed across them.

    ``program``: the loops whose points are programs.
    """
    tiling, base = emitter.tiling, emitter.base
    rows, row = tiling.tiles
    wide = ".to(tl.int64)" if emitter.wide else ""
    base.line(f"program = tl.program_id(0){wide}")
    extents = tuple(v.extent for v in program)
    number = Var("program", product(extents))
    base.variables[number] = "program"
    for variable, place in zip(program, unflatten(number.index, extents), strict=True):
        base.variables[variable] = emitter.index(place, base)
    base.line(f"r = {_range(emitter, row)}")
    base.variables[row.variable] = "r"
    RowWriter(emitter)
    bounds = f"0, {emitter.size(rows.extent)}, {rows.block}"
    ahead = f"tl.range({bounds}, num_stages={tiling.stages})" if tiling.stages > 1 else f"range({bounds})"
    scope = Scope(base, f"for xoffset in {ahead}:")
    scope.line(f"x = xoffset + {_range(emitter, rows)}{wide}")
    scope.variables[rows.variable] = "x"
    sums = [store for store in tiling.stores if store.mode == "sum"]
    both = frozenset((rows.variable, row.variable))
    totals = []
    for store in sums:
        total, register = emitter.fresh("across"), triton_type(store.expr.dtype).register
        base.line(f"{total} = tl.full({emitter.shape(both)}, 0, {register})")
        value = emitter.spread(emitter.value(store.expr, scope), emitter.span(store.expr), both)
        if tiling.needs_mask(rows):
            value = f"tl.where({emitter.tile_mask(rows, scope)}, {value}, 0)"
        totals.append((store, total, value))
    _store_all(emitter, [store for store in tiling.stores if store.mode != "sum"], scope)
    for _, total, value in totals:
        scope.line(f"{total} += {value}")
    scope.close()
    for store, total, _ in totals:
        pointer, _, mask = _target(emitter, store, base)
        base.line(f"tl.store({', '.join([pointer, f'tl.sum({total}, 0, keep_dims=True)', *_mask(mask)])})")


def _range(emitter: Emitter, tile: Tile) -> str:
    dimensions = emitter.tiling.dimensions
    rank, position = len(dimensions), dimensions.index(tile)
    around = ", ".join(":" if k == position else "None" for k in range(rank))
    text = f"tl.arange(0, {tile.block})" + (f"[{around}]" if rank > 1 else "")
    return f"{text}.to(tl.int64)" if emitter.wide and tile.is_row else text


def _store_all(emitter: Emitter, stores: list[FlatStore], scope: Scope) -> None:
    """All values first, then the writes: a store may take over the memory of what another value reads."""
    for line in _store_lines(emitter, stores, scope):
        scope.line(line)


def _store_parts(emitter: Emitter, stores: list[FlatStore]) -> None:
    """The same of the parts of a row."""
    found = []
    for part in emitter.parts:
        with emitter.within(part):
            found.append((part, _store_lines(emitter, stores, part)))
    for part, lines in found:
        for line in lines:
            part.line(line)


def _store_lines(emitter: Emitter, stores: list[FlatStore], scope: Scope) -> list[str]:
    """The lines that store values, which are written."""
    values = [emitter.value(store.expr, scope) for store in stores]
    targets = [_target(emitter, store, scope) for store in stores]
    lines = []
    for store, value, (pointer, have, mask) in zip(stores, values, targets, strict=True):
        arguments = ", ".join([pointer, emitter.spread(value, emitter.span(store.expr), have), *_mask(mask)])
        if store.mode is None or store.mode == "set":
            lines.append(f"tl.store({arguments})")
        else:
            lines.append(f'tl.atomic_{store.mode}({arguments}, sem="relaxed")')
    return lines


def _store_in_order(emitter: Emitter) -> None:
    """Updates one after another along the serial loops; all lanes see each before the next begins."""
    scope = emitter.base
    opened = []
    for variable in emitter.tiling.serial:
        step, name = emitter.fresh("step"), emitter.fresh("k")
        scope = Scope(scope, f"for {step} in range(0, {emitter.size(variable.extent)}):")
        scope.line(f"{name} = tl.full([], 0, {emitter.index_type}) + {step}")
        scope.variables[variable] = name
        opened.append(scope)
    for store in emitter.tiling.stores:
        value = emitter.value(store.expr, scope)
        pointer, have, mask = _target(emitter, store, scope)
        place, old = emitter.fresh("place"), emitter.fresh("old")
        scope.line(f"{place} = {pointer}")
        kind = triton_type(store.expr.dtype)
        if store.mode not in (None, "set"):
            # Written out here and not as an expression: it must be loaded again each time.
            read = f"tl.load({', '.join([place, *_mask(mask)])})"
            scope.line(f"{old} = {kind.load(read)}")
            value = f"({scalar_text(Expr.make(store.mode, (store.expr, store.expr), store.expr.dtype), [old, value])})"
        else:
            value = emitter.spread(value, emitter.span(store.expr), have)
        scope.line(f"tl.store({', '.join([place, value, *_mask(mask)])})")
    scope.line("tl.debug_barrier()")
    for loop in reversed(opened):
        loop.close()


def _mask(mask: str) -> list[str]:
    return [f"mask={mask}"] if mask else []


def _target(emitter: Emitter, store: FlatStore, scope: Scope) -> tuple[str, frozenset[Var], str]:
    """Pointer of a store, the variables along which it varies, and its mask.

    A scatter happens at every point of the loops, also along those that neither its place nor its value mentions.
    """
    have = store.offset.variables.union(*map(emitter.span, store.offset.values))
    want = have
    if store.mode not in (None, "sum"):
        want |= frozenset(emitter.tiles)
    if store.condition is not None:
        want |= emitter.span(store.condition)
    offset = emitter.index(store.offset, scope)
    text = emitter.pointer(store.tensor)
    if offset != "0":
        text += f" + {offset if emitter.is_plain(offset) or offset.isdigit() else f'({offset})'}"
    return emitter.spread(text, have, want), want, emitter.masks(want, scope, store.condition)
