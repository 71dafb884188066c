"""Where the tile of a program lies among rows in groups, each of which begins with a tile of its own.

Programs are as many as there can be tiles, which is known ahead: a tile for each group, and one for the rows behind all
of them, may not be full.  Every program counts the tiles of the groups in front of it.
"""

from __future__ import annotations

from turret.ir.analysis.groups import RowGroups
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.matrix import TILE_GROUP
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, power_of_two


def count_groups(emitter: Emitter, groups: RowGroups) -> None:
    """Write where groups begin and end, and how many tiles there are up to the end of each."""
    base, rows = emitter.base, emitter.tiling.tiles[0]
    count, extent = groups.count, emitter.size(rows.extent)
    pointer, lanes = emitter.pointer(groups.ends), power_of_two(count + 1)
    wide = ".to(tl.int64)" if emitter.wide else ""
    base.line(f"number = tl.arange(0, {lanes})")
    behind = f"mask=number < {count}, other=2147483647){wide}"
    base.line(f"ends = tl.maximum(tl.minimum(tl.load({pointer} + number, {behind}, {extent}), 0)")
    ahead = f"mask=(number > 0) & (number <= {count}), other=2147483647){wide}"
    base.line(f"begins = tl.maximum(tl.minimum(tl.load({pointer} + number - 1, {ahead}, {extent}), 0)")
    base.line("begins = tl.where(number == 0, 0, begins)")
    base.line(f"tiles = tl.cdiv(tl.maximum(ends - begins, 0), {rows.block})")
    base.line("tiles_to = tl.cumsum(tiles, 0)")


def open_group(emitter: Emitter, form: MatrixForm, groups: RowGroups, scope: Scope) -> None:
    """Bind rows, their mask and the group of tile number ``tile`` in its ``scope``, and how deep it is: what is in no
    group is not."""
    rows, count = emitter.tiling.tiles[0], groups.count
    wide = ".to(tl.int64)" if emitter.wide else ""
    scope.line("group = tl.sum((tiles_to <= tile).to(tl.int32), 0)")
    scope.line("own = number == group")
    scope.line(f"begin = tl.sum(tl.where(own, begins + (tile - tiles_to + tiles) * {rows.block}, 0), 0)")
    scope.line(f"y = begin + tl.arange(0, {rows.block})[:, None]{wide}")
    scope.line("ymask = y < tl.sum(tl.where(own, ends, 0), 0)")
    scope.line(f"deep = tl.where(group < {count}, {emitter.size(form.depth.extent)}, 0)")
    scope.line(f"picked = tl.minimum(group, {count - 1}){wide}")
    scope.line(f"group_of_row = tl.full([{rows.block}, 1], 0, tl.int64) + group")
    scope.names["ymask"] = "ymask"
    scope.names[groups.node, None] = "group_of_row"
    scope.variables[TILE_GROUP] = "picked"
