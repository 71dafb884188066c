"""Stream-K: the last tiles of a product divided over all programs by steps of the depth, where whole tiles would leave
many programs without one at the end.

Each program takes as many steps as every other, of one tile after another, and then whole tiles of what is left.  Of a
tile that several programs have steps of each leaves its sums in memory, and the last one to do so adds them up, in the
order of programs: no program waits for another, and results are the same each time.
"""

from __future__ import annotations

from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.matrix import matrix_grid
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.kernel import Scratch
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, TileLoop

DEPTH_STEPS = "for depth in range(low * RBLOCK, high * RBLOCK, RBLOCK):"
"""The loop over those steps of a tile that a program takes."""


def open_pieces(emitter: Emitter, form: MatrixForm, count: str) -> Scope:
    """The loop of a program over its pieces: parts of those of ``count`` tiles that are divided, then whole ones."""
    base = emitter.base
    base.line("own = tl.program_id(0)")
    base.line(f"count = {count}")
    base.line(f"steps = tl.cdiv({emitter.size(form.depth.extent)}, RBLOCK)")
    base.line("divided = tl.where(count % PROGRAMS == 0, 0, tl.minimum(count, count % PROGRAMS + PROGRAMS))")
    base.line("total = (divided * steps).to(tl.int64)")
    base.line("begins = (own * total // PROGRAMS).to(tl.int32)")
    base.line("ends = ((own + 1) * total // PROGRAMS).to(tl.int32)")
    base.line("pieces = tl.cdiv(ends, steps) - begins // steps")
    base.line("entire = tl.cdiv(tl.maximum(count - divided - own, 0), PROGRAMS)")
    tile = Scope(base, "for piece in range(0, pieces + entire):")
    tile.line("is_part = piece < pieces")
    tile.line("turn = tl.where(is_part, begins // steps + piece, divided + own + (piece - pieces) * PROGRAMS)")
    tile.line("low = tl.where(is_part, tl.maximum(begins - turn * steps, 0), 0)")
    tile.line("high = tl.where(is_part, tl.minimum(ends - turn * steps, steps), steps)")
    return tile


def add_up(emitter: Emitter, form: MatrixForm, loop: TileLoop, tile: Scope, totals: list[str]) -> Scope:
    """The block in which the sums of a whole tile are there: in the program that had the last of its steps."""
    y, x = emitter.tiling.tiles
    sums, taken = loop.scratch
    _claim(emitter, form, loop, len(totals))
    size = f"{y.block} * {x.block}"
    lanes = f"tl.arange(0, {y.block})[:, None] * {x.block} + tl.arange(0, {x.block})[None, :]"
    base = emitter.base
    base.line(f"lanes = {lanes}")
    tile.line("is_whole = high - low == steps")
    apart = Scope(tile, "if is_whole == 0:")
    apart.line(f"left = {emitter.pointer(sums.name)} + (own * 2 + (low == 0)).to(tl.int64) * ({len(totals)} * {size})")
    for number, total in enumerate(totals):
        apart.line(f"tl.store(left + {number} * {size} + lanes, {total})")
    apart.line("tl.debug_barrier()  # all of it is there before it is counted")
    apart.line(f'before = tl.atomic_add({emitter.pointer(taken.name)} + turn, high - low, sem="acq_rel")')
    apart.line("is_whole = before + high - low == steps")
    last = Scope(apart, "if is_whole:")
    last.line("from_program = (((turn * steps + 1).to(tl.int64) * PROGRAMS - 1) // total).to(tl.int32)")
    last.line("to_program = (((turn + 1) * steps).to(tl.int64) * PROGRAMS - 1) // total + 1")
    for total in totals:
        last.line(f"{total} = tl.zeros([{y.block}, {x.block}], tl.float32)")
    others = Scope(last, "for other in range(from_program, to_program.to(tl.int32)):")
    others.line("is_first = other * total // PROGRAMS <= turn * steps")
    others.line(f"left = {emitter.pointer(sums.name)} + (other * 2 + is_first).to(tl.int64) * ({len(totals)} * {size})")
    for number, total in enumerate(totals):
        others.line(f'{total} += tl.load(left + {number} * {size} + lanes, cache_modifier=".cg")')
    others.close()
    last.close()
    apart.close()
    return Scope(tile, "if is_whole:")


def _claim(emitter: Emitter, form: MatrixForm, loop: TileLoop, products: int) -> None:
    """Say how much memory the programs leave their sums in, two pieces each, and count the steps of tiles in."""
    y, x = emitter.tiling.tiles
    sums, taken = loop.scratch
    emitter.scratch = (
        Scratch(sums.name, f"PROGRAMS * {2 * products} * {y.block} * {x.block}", "float32"),
        Scratch(taken.name, matrix_grid(emitter, form), "int32", zeroed=True),
    )
