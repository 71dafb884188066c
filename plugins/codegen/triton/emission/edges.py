"""Rows that begin anywhere, as whole vectors of elements and the elements in front of the first and behind the last.

Of a row that begins at two bytes an element would be an instruction.  Its vectors are loaded and stored as such, in
blocks whose mask is the same for all elements of one; the at most 2 * (unit - 1) other elements are a small block of
their own.  Nothing is read that is not of the row.
"""

from __future__ import annotations

from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.scopes import RowPart, Scope
from turret.plugins.codegen.triton.tiles.tiling import Edges, Tile


def open_edges(emitter: Emitter, row: Tile, edges: Edges, lanes: str) -> None:
    """Write where the row's vectors begin and how many elements they have, and open the part of the edges.

    ``lanes``: the numbers of a block's elements.
    """
    base, unit, count = emitter.base, edges.unit, emitter.size(row.extent)
    start = emitter.index(edges.start, base)
    base.line(f"rstart = {start}")
    base.line(f"rvectors = (rstart + {unit - 1}) // {unit} * {unit}")
    base.line(f"rfirst = tl.minimum(rvectors - rstart, {count})")
    base.line(f"rcount = ({count} - rfirst) // {unit} * {unit}")
    emitter.row_end = "rcount"
    emitter.edges = part = RowPart(base, str(2 * unit))
    ends = lanes.replace(row.block, part.block)
    base.line(f"edge = {ends}")
    base.line(f"redge = edge + tl.where(edge < {unit}, 0, rfirst + rcount - {unit})")
    base.line(f"edgemask = redge < tl.where(edge < {unit}, rfirst, {count})")
    part.variables[row.variable] = "redge"
    part.names["rmask"] = "edgemask"


def open_vectors(scope: Scope, row: Tile, lanes: str, masked: bool) -> None:
    """Bind the row's variable to a block of its vectors.

    ``lanes``: the numbers of the block's elements among those of the vectors.
    """
    scope.line(f"r = rfirst + {lanes}")
    scope.line(f"rplace = rvectors + {lanes}")
    scope.variables[row.variable], scope.vectors = "r", "rplace"
    if masked:
        scope.line(f"rmask = {lanes} < rcount")
        scope.names["rmask"] = "rmask"


def last_vector(row: Tile, edges: Edges, emitter: Emitter) -> tuple[str, str]:
    """How many elements the vectors of any row have at least, and at most, as numbers that all rows share."""
    count, unit = emitter.size(row.extent), edges.unit
    return f"tl.maximum({count} - {unit - 1}, 0) // {unit} * {unit}", f"{count} // {unit} * {unit}"
