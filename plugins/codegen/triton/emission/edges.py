"""Rows that begin anywhere, as whole vectors of elements and the elements in front of the first and behind the last.

Of a row that begins at two bytes an element would be an instruction.  Its vectors are loaded and stored as such, in
blocks whose mask is the same for all elements of one; the at most 2 * (unit - 1) other elements are a small block of
their own.  Nothing is read that is not of the row.
"""

from __future__ import annotations

from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.scopes import RowPart, Scope, WalkedPart
from turret.plugins.codegen.triton.tiles.tiling import Edges, Tile


def open_rows(emitter: Emitter, rows: Tile, row: Tile, edges: Edges, lanes: str) -> None:
    """Write where the program's row lies, or in a loop each of its rows, and open its parts.

    ``lanes``: the numbers of a block's elements.  The loop over rows is open then, if there is one.
    """
    base = emitter.base
    number = f"tl.program_id(0){'.to(tl.int64)' if emitter.wide else ''}"
    name = "first" if edges.walked else rows.letter
    base.line(f"{name} = {number}")
    base.line(f"rbase = {lanes}")
    first = RowPart(base, row.block)
    first.variables[rows.variable] = name
    _open_edges(emitter, row, edges, emitter.index(edges.start, first), lanes)
    if not edges.walked:
        base.variables[rows.variable] = name
    if not emitter.tiling.persistent:
        return
    vectors = RowPart(base, row.block)
    _bind_vectors(vectors, row, "rbase", masked=True)
    assert emitter.edges is not None
    if edges.walked:
        emitter.parts = _open_loop(emitter, rows, row, edges, [vectors, emitter.edges])
    else:
        _place_vectors(vectors, "rplace", "rvectors", "rbase")
        emitter.parts = [vectors, emitter.edges]


def _open_edges(emitter: Emitter, row: Tile, edges: Edges, start: str, lanes: str) -> None:
    """Write where the row's vectors begin and how many elements they have, and open the part of the edges."""
    base, unit, count = emitter.base, edges.unit, emitter.size(row.extent)
    base.line(f"rstart = {start}")
    base.line(f"rvectors = {_vectors('rstart', unit)}")
    base.line(f"rfirst = tl.minimum(rvectors - rstart, {count})")
    base.line(f"rcount = ({count} - rfirst) // {unit} * {unit}")
    emitter.row_end = "rcount"
    emitter.edges = part = RowPart(base, str(2 * unit))
    base.line(f"edge = {lanes.replace(row.block, part.block)}")
    base.line(f"redge = edge + tl.where(edge < {unit}, 0, rfirst + rcount - {unit})")
    base.line(f"edgemask = redge < tl.where(edge < {unit}, rfirst, {count})")
    part.variables[row.variable] = "redge"
    part.names["rmask"] = "edgemask"


def _open_loop(emitter: Emitter, rows: Tile, row: Tile, edges: Edges, shared: list[RowPart]) -> list[RowPart]:
    """Open a loop over rows that begin alike; the parts of each, with what they share in front of it."""
    count = emitter.size(rows.extent)
    loop = emitter.rows_loop = Scope(emitter.base, f"for x in range(first, {count}, tl.num_programs(0)):")
    loop.line("following = x + tl.num_programs(0)")
    loop.variables[rows.variable] = "x"
    parts: list[RowPart] = []
    for part in shared:
        walked = WalkedPart(loop, part)
        walked.ahead = RowPart(part, part.block), RowPart(part, part.block)
        walked.ahead[1].lines = loop.lines
        for scope, name in zip((walked, *walked.ahead), ("x", "first", "following"), strict=True):
            scope.variables[rows.variable] = name
            if part is not emitter.edges:
                start = emitter.index(edges.start, scope)
                _place_vectors(scope, f"rplace_{name}", _vectors(f"({start})", edges.unit), "rbase")
        for scope, name in zip(walked.ahead, ("first", "following"), strict=True):
            scope.names["rmask"] = f"{part.names['rmask']} & ({name} < {count})"
        parts.append(walked)
    return parts


def _vectors(start: str, unit: int) -> str:
    """Where the first whole vector begins."""
    return f"({start} + {unit - 1}) // {unit} * {unit}"


def open_vectors(scope: Scope, row: Tile, lanes: str, masked: bool) -> None:
    """Bind the row's variable to a block of its vectors.

    ``lanes``: the numbers of the block's elements among those of the vectors.
    """
    _bind_vectors(scope, row, lanes, masked)
    _place_vectors(scope, "rplace", "rvectors", lanes)


def _bind_vectors(scope: Scope, row: Tile, lanes: str, masked: bool) -> None:
    scope.line(f"r = rfirst + {lanes}")
    scope.variables[row.variable] = "r"
    if masked:
        scope.line(f"rmask = {lanes} < rcount")
        scope.names["rmask"] = "rmask"


def _place_vectors(scope: Scope, name: str, start: str, lanes: str) -> None:
    """Write where a block of vectors lies in memory."""
    scope.line(f"{name} = {start} + {lanes}")
    scope.vectors = name


def last_vector(row: Tile, edges: Edges, emitter: Emitter) -> tuple[str, str]:
    """How many elements the vectors of any row have at least, and at most, as numbers that all rows share."""
    count, unit = emitter.size(row.extent), edges.unit
    return f"tl.maximum({count} - {unit - 1}, 0) // {unit} * {unit}", f"{count} // {unit} * {unit}"
