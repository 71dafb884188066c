"""Which loops become which dimensions of a tile, and the block sizes worth trying.

A pointwise kernel gets one tile dimension for each direction in which some access is contiguous (up to three): a
plain chain one, a transposed copy two.  A reduction gets ``x`` for its independent iterations and ``r`` for the
row; the row lies in one block (persistent) or is walked in a loop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import attrs
import torch

from turret.errors import UnsupportedError
from turret.ir.analysis.groups import RowGroups
from turret.ir.expr import Expr, walk
from turret.ir.index import Div, Index, Mod, Size, Var, hinted, product, size, unflatten
from turret.ir.nest import FlatStore, Nest, substitute
from turret.plugins.codegen.triton.tiles.accesses import (
    has_moments,
    is_along_row,
    is_walked_once,
    large_offsets,
    moved_by,
    moved_values,
    points_of,
    reduces_row,
    stored_along,
    stride,
    typical_offset,
)
from turret.plugins.codegen.triton.tiles.kernel import Config
from turret.plugins.codegen.triton.tiles.sizes import estimate
from turret.plugins.codegen.triton.tiles.softmax import softmax_sums
from turret.plugins.codegen.triton.tiles.split_kernel import Part

MANY_SHARING = 1024
"""Rows from which on programs take several of those that share what they read."""
LONGEST_SHARED = 4096
"""The longest of such rows in one block: several of them are as many numbers a thread as registers hold."""

PERSISTENT_INNER, PERSISTENT_OUTER = 32768, 256
"""Longest rows held in one block: where the row is contiguous, and where the independent iterations are."""
MANY_ROWS = 2048
"""Rows walked in a loop, one a program, that keep a device busy with few warps each: more of them lie side by side on
a multiprocessor, and each waits less at the end."""
MANY_SHARED, SHORTEST_WALKED, LANE_ELEMENTS, ELEMENTS_TAKEN = 2, 2048, 32, 24576
"""Rows that share so many values of a point, in blocks of so many elements, are walked by programs with so many of them
a lane; programs have blocks of so many in all for each multiprocessor, which has room for half of them at a time."""
SHORTEST_EDGED, LEAST_UNIT = 512, 4
"""Rows from which on it pays to read whole vectors, and the ends by themselves, where rows begin anywhere; and how many
elements a vector should have.  60001 rows of bfloat16, layer norm and softmax: 513 of them 74 and 73 us (81 and 73 us
without), 1001 of them 93 and 73 us (137 and 75 us)."""
SHORT_ROW, SHORTEST_BLOCK = 2048, 64
"""Rows of symbolic length that were at most so long are walked in blocks of about that length, several at a time; and
the least block, since later rows may be longer."""
LONGEST_PLAIN = 8192
"""Longest persistent row of a kernel that walks the row only once, so that a loop would read no more."""
LONGEST_BUSY = 64
"""The same where the independent iterations are contiguous and a point moves more than one value: with loads under way
for several, blocks of few rows in a loop wait less than one large block.  On an H200, bfloat16, 12544 x 1024 read three
times and summed: 23.2 us in a loop, 28.3 us in one block; read once and summed 10.9 and 10.6."""
FEW_COLUMNS = 4224
"""Independent contiguous iterations from which 32 of them a program give 132 programs."""
MANY_WALKED = 1 << 25
"""Points of columns from which programs read more at once."""

STAGES, AHEAD_BYTES = 3, 96 << 10
"""Blocks of rows under way where programs walk rows, and the shared memory that those loaded ahead may take (two
programs a multiprocessor fit sm_90's 227 KiB).  Backward of a layer norm of 16384 x 4096 bfloat16 on an H200: 131 us
without, 105 us with three stages."""


@attrs.frozen(eq=False)
class Tile:
    """One tile dimension: the variable that runs over it, the loops it stands for, and whether it is the row."""

    variable: Var
    loops: tuple[Var, ...]

    @property
    def letter(self) -> str:
        return self.variable.name

    @property
    def is_row(self) -> bool:
        return self.letter == "r"

    @property
    def block(self) -> str:
        """Name of the constexpr that is its block size."""
        return f"{self.letter.upper()}BLOCK"

    @property
    def extent(self) -> Size:
        return self.variable.extent


@attrs.frozen(eq=False)
class MatrixForm:
    """A nest that sums products of matrices along its row: one or several with the same loops.

    ``rows``, ``columns`` and ``batch`` are its outer loops, in order.  ``groups``, if not None: the rows are in groups,
    each of which has another right factor; a tile has rows of one of them.
    """

    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    batch: tuple[Var, ...]
    depth: Var
    groups: RowGroups | None = None
    window: int = 1


@attrs.frozen
class TileLoop:
    """Programs of a product of matrices that compute several tiles each: about one a multiprocessor, which begins to
    load the next tile while it stores the last.

    ``has_descriptors``: operands and results are moved by tensor descriptors where there are some of them;
    ``described``: all operands are, and tiles of the result may be stored in parts.
    """

    has_descriptors: bool
    described: bool


@attrs.frozen(eq=False)
class Edges:
    """Rows that begin anywhere: whole vectors of elements, with fewer elements than a vector has at each end.

    ``unit``: elements of a vector.  ``start``: the offset at which a row begins, in all that has one row for each of
    them, but for a multiple of the unit.  ``shared``: how many values of a point are read that all rows share.
    ``walked``: a program has many rows, which begin alike, and reads once what they share.
    """

    unit: int
    start: Index
    shared: int
    walked: bool = False


@attrs.frozen(eq=False)
class Tiling:
    """A nest over tile variables: ``tiles`` from slowest to fastest (the row last), and candidate configurations.

    ``persistent``: the row lies in one block.  ``serial``: loops that run one point after another inside each
    program (of scatters without an atomic instruction).  ``program``: loops whose points are programs, where rows
    are walked in each program in blocks of ``x`` to be summed over.  ``along_row``: memory is contiguous along the row.
    ``stages``: how many blocks of such rows are under way at a time, 1 for no loads ahead.  ``matrix``: the loops of a
    product of matrices, whose depth is walked in blocks and is no tile.  ``loop``: if not
    None, programs compute several tiles of it each.  ``part``: the part of the row that a program takes, if not all.
    ``half_filled``: the row has more elements than half of its block.  ``edges``: if not None, blocks hold the whole
    vectors of a row, and its ends come by themselves.
    """

    tiles: tuple[Tile, ...]
    stores: tuple[FlatStore, ...]
    nest: Nest
    persistent: bool
    configs: tuple[Config, ...]
    serial: tuple[Var, ...] = ()
    program: tuple[Var, ...] | None = None
    along_row: bool = False
    stages: int = 1
    matrix: MatrixForm | None = None
    loop: TileLoop | None = None
    part: Part | None = None
    half_filled: bool = False
    edges: Edges | None = None

    @property
    def row(self) -> Tile | None:
        return self.tiles[-1] if self.tiles and self.tiles[-1].is_row else None

    @property
    def dimensions(self) -> tuple[Tile, ...]:
        """The tiles that blocks have a dimension for: of rows with edges a program has one."""
        return self.tiles if self.edges is None else self.tiles[-1:]

    @property
    def ends_anywhere(self) -> bool:
        """Whether programs have parts of a row of which the last ones are shorter."""
        return self.part is not None and self.part.length is not None

    def needs_mask(self, tile: Tile) -> bool:
        """Whether some block of some configuration reaches beyond the tile's extent."""
        in_groups = self.matrix is not None and self.matrix.groups is not None and tile is self.tiles[0]
        if in_groups or (tile.is_row and (self.ends_anywhere or self.edges is not None)):
            return True
        if not isinstance(tile.extent, int):
            return any(self._block(tile, config) != 1 for config in self.configs)
        return any(tile.extent % self._block(tile, config) for config in self.configs)

    def width(self, tile: Tile) -> str:
        """How far a tile of the result reaches: a block, or as many as its columns are stored in one after another."""
        return f"({tile.block} * PARTS)" if self._is_parted(tile) else tile.block

    def _is_parted(self, tile: Tile) -> bool:
        return self.loop is not None and tile is self.tiles[-1]

    def _block(self, tile: Tile, config: Config) -> int:
        constants = dict(config.constants)
        return constants[tile.block] * (constants["PARTS"] if self._is_parted(tile) else 1)


def tile(nest: Nest, part: Part | None = None) -> Tiling:
    """The tiling of a nest, of which a program takes a part of each row, or all."""
    if nest.swept:
        return _swept(nest)
    return _reduction(nest, part) if nest.inner else _pointwise(nest)


def _over_tiles(
    nest: Nest, groups: list[tuple[str, tuple[Var, ...]]]
) -> tuple[tuple[Tile, ...], tuple[FlatStore, ...]]:
    tiles: list[Tile] = []
    mapping: dict[Var, Index] = {}
    rebind = None
    for letter, loops in groups:
        variable = Var(letter, product(v.extent for v in loops))
        tiles.append(Tile(variable, loops))
        mapping |= dict(zip(loops, unflatten(variable.index, tuple(v.extent for v in loops)), strict=True))
        if letter == "r":
            rebind = nest.inner, (variable,)
    return tuple(tiles), substitute(nest, mapping, rebind)


def _by_stride(loops: tuple[Var, ...], offset: Index, hints: Mapping[str, int]) -> tuple[Var, ...]:
    """Largest stride first; loops that ``offset`` does not move evenly with stay where they are."""
    strides = {v: step for v in loops if (step := stride(offset, v, hints))}
    moving = list(strides)
    ordered = iter(sorted(moving, key=lambda v: -abs(strides[v])))
    return tuple(next(ordered) if v in moving else v for v in loops)


def power_of_two(value: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def _block(extent: Size, most: int) -> int:
    return min(most, power_of_two(extent)) if isinstance(extent, int) else most


def serial_tile(nest: Nest, parallel: tuple[Var, ...]) -> Tiling:
    """A tiling in which only the loops ``parallel`` are spread over lanes and programs, the others run in order."""
    tiles, stores = _over_tiles(nest, [("x", parallel)] if parallel else [])
    configs = [_config({t.block: _block(t.extent, 128) for t in tiles}, 1)]
    rest = tuple(v for v in nest.outer if v not in parallel)
    return Tiling(tiles, stores, nest, True, tuple(configs), rest)


# ---------------------------------------------------------------- pointwise


def _pointwise(nest: Nest) -> Tiling:
    loops = nest.outer if nest.scattered else _by_stride(nest.outer, _largest(nest), nest.hints)
    groups = [("x", loops)] if loops else []
    if not nest.scattered:
        runs = _contiguous_groups(nest, loops)
        if not runs and (runs := _undivided_groups(nest, loops)):
            tiles, stores = _over_tiles(nest, runs)
            return Tiling(tiles, stores, nest, True, _rows_configs(tiles, nest.hints))
        groups = runs or groups
    tiles, stores = _over_tiles(nest, groups)
    return Tiling(tiles, stores, nest, True, _pointwise_configs(tiles, nest))


def _largest(nest: Nest) -> Index:
    return max((offset for _, offset in nest.accesses()[1]), key=lambda o: points_of(o, nest.outer, nest.hints))


def large_steps(tiling: Tiling) -> list[tuple[Tile, list[int | None]]]:
    """For each tile, how far the accesses move along it that reach more than half as many elements as any: ``stride``
    of each that varies along it."""
    loops = tuple(tile.variable for tile in tiling.tiles) + tiling.serial + (tiling.program or ())
    large = large_offsets(attrs.evolve(tiling.nest, stores=tiling.stores), loops)
    return [
        (tile, [stride(at, tile.variable, tiling.nest.hints) for at in large if tile.variable in at.variables])
        for tile in tiling.tiles
    ]


def _contiguous_groups(nest: Nest, loops: tuple[Var, ...]) -> list[tuple[str, tuple[Var, ...]]]:
    """Loops in runs, each ending with one that some access is contiguous along; empty where one run serves."""
    leads = _leads(nest, loops) if loops else set()
    if len(leads) < 2:
        return []
    runs: list[list[Var]] = [[]]
    for loop in loops:
        runs[-1].append(loop)
        if loop in leads:
            runs.append([])
    runs = [run for run in runs if run]
    return [(letter, tuple(run)) for letter, run in zip("zyx"[-len(runs) :], runs, strict=True)]


def _leads(nest: Nest, loops: tuple[Var, ...]) -> set[Var]:
    """The last loop, and up to two that large accesses are contiguous along and no other lead is."""
    reads, writes = nest.accesses()
    hints = nest.hints
    total = math.prod(estimate(v.extent, hints) for v in loops)
    leads = {loops[-1]}
    for _, offset in sorted((*reads, *writes), key=lambda access: -points_of(access[1], loops, hints)):
        if points_of(offset, loops, hints) * 8 < total or len(leads) == 3:
            continue
        strides = {v: stride(offset, v, hints) for v in loops}
        if any(strides[v] == 1 for v in leads):
            continue
        contiguous = [v for v in loops if strides[v] == 1 and estimate(v.extent, hints) >= 8]
        # Worth a dimension of its own only where the fast loops jump through memory.
        if contiguous and any(strides[v] not in (0, 1) for v in leads):
            leads.add(contiguous[0])
    return leads


def _undivided_groups(nest: Nest, loops: tuple[Var, ...]) -> list[tuple[str, tuple[Var, ...]]]:
    """Loops in two runs, where each point of a single one would be divided by a symbolic size: the last is the longest
    of which no point is, and its rows are long enough to be blocks.  Empty where one run serves."""
    for first in range(len(loops)):
        run = loops[first:]
        if all(isinstance(v.extent, int) for v in run[1:]):
            divided = False
        else:
            tiles, stores = _over_tiles(nest, [("y", loops[:first]), ("x", run)])
            divided = _is_divided(attrs.evolve(nest, stores=stores), tiles[-1].variable)
        if not divided:
            long = estimate(product(v.extent for v in run), nest.hints) >= SHORTEST_ROW
            return [("y", loops[:first]), ("x", run)] if first and long else []
    return []


def _is_divided(nest: Nest, variable: Var) -> bool:
    """Whether some index divides a variable by a symbolic size."""
    atoms = [atom for index in nest.indices() for atom, _ in index.terms]
    for atom in atoms:
        if isinstance(atom, (Div, Mod)) and variable in atom.variables:
            if not isinstance(atom.divisor, int):
                return True
            atoms += [inner for inner, _ in atom.numerator.terms]
    return False


SHORTEST_ROW = 32
"""Rows of symbolic length from which on blocks are of rows, and the least block."""


def _rows_configs(tiles: tuple[Tile, ...], hints: Mapping[str, int]) -> tuple[Config, ...]:
    """Blocks of several rows, as long as leaves few lanes without an element at the ends of rows like the first."""
    length = estimate(tiles[-1].extent, hints)
    blocks = [block for block in (1024, 512, 256, 128, 64) if 8 * (-length % block) <= length]
    block = next(iter(blocks), SHORTEST_ROW)
    shapes = ((2048, 8), (1024, 4), (4096, 8), (2048, 4))
    return tuple(_config({"YBLOCK": max(1, n // block), "XBLOCK": block}, warps) for n, warps in shapes)


_SHAPES: dict[int, tuple[tuple[tuple[int, ...], int], ...]] = {
    0: (((), 1),),
    1: (((1024,), 4), ((512,), 4), ((2048,), 8), ((256,), 2)),
    2: (((32, 32), 4), ((64, 64), 8), ((16, 64), 4), ((64, 16), 4)),
    3: (((8, 16, 16), 8), ((4, 16, 16), 4), ((16, 16, 16), 8)),
}
"""Block sizes by rank, slowest dimension first, with warps."""
MANY_POINTS = 1 << 18
"""Points from which larger blocks leave programs enough: an H200 starts a block in 1.2 ns, which bounds small ones."""
_LARGE = {
    1: (((2048,), 8), ((1024,), 4), ((4096,), 8), ((2048,), 4)),
    2: (((64, 64), 8), ((32, 32), 4), ((64, 32), 4), ((32, 64), 4)),
}
"""The same for so many points: of nine shapes each the first was nearest to the best from 2**18 to 2**27 points."""
_LARGE_NARROW = (((2048,), 4), ((2048,), 8), ((1024,), 4), ((8192,), 16))
"""The same in a run where few values of 16 bits move at a point.  128M points of bfloat16: fourteen operations 131 us
(151 us with 8 warps, 161 us in blocks of 1024), ``gelu`` 179 us (196 us, 195 us); a rotary embedding, which reads three
values a point, 74 us (68 us, 80 us)."""


def _pointwise_configs(tiles: tuple[Tile, ...], nest: Nest) -> tuple[Config, ...]:
    shapes = _SHAPES[len(tiles)]
    if math.prod(estimate(tile.extent, nest.hints) for tile in tiles) >= MANY_POINTS:
        shapes = _LARGE_NARROW if len(tiles) == 1 and _moves_little(nest) else _LARGE.get(len(tiles), shapes)
    configs = []
    for blocks, warps in shapes:
        fitted = {t.block: _block(t.extent, b) for t, b in zip(tiles, blocks, strict=True)}
        count = math.prod(fitted.values())
        configs.append(_config(fitted, min(warps, max(1, count // 64)) if tiles else 1))
    return _even_first(tiles, configs)


def _moves_little(nest: Nest) -> bool:
    """Whether a point reads two values at most, of 16 bits like those that it writes; shared ones are left out."""
    reads, writes = nest.accesses()
    moved = moved_by(nest, reads)
    return len(moved) <= 2 and all(
        dtype.itemsize <= 2 for dtype in (*moved, *(nest.tensors[n].dtype for n, _ in writes))
    )


def _config(blocks: dict[str, int], warps: int, stages: int = 1) -> Config:
    return Config(tuple(sorted(blocks.items())), power_of_two(warps), stages)


def _even_first(tiles: tuple[Tile, ...], configs: list[Config]) -> tuple[Config, ...]:
    """Distinct configurations; where the first fits without a rest, only those that do, so that masks can go, and so
    where its blocks are one of many that nobody knows."""
    singles = {t.block for t in tiles if not isinstance(t.extent, int) and dict(configs[0].constants)[t.block] == 1}
    distinct = [c for c in dict.fromkeys(configs) if all(dict(c.constants)[block] == 1 for block in singles)]

    def even(config: Config) -> bool:
        blocks = dict(config.constants)
        return all(isinstance(t.extent, int) and t.extent % blocks[t.block] == 0 for t in tiles)

    if even(distinct[0]):
        distinct = [config for config in distinct if even(config)]
    return tuple(distinct)


# ---------------------------------------------------------------- reductions


HALF_FILLED = 1024
"""Blocks from which on rows that begin anywhere are taken to fill half of them: the compiler then masks the other half
alone.  Of rows of 4095 bfloat16 a softmax has a fifth fewer instructions."""


def held_rows(tiling: Tiling) -> tuple[Tiling, tuple[Size, ...]] | None:
    """As a tiling that walks rows of symbolic length, with a block that holds such as were there when the graph was
    made, and what is zero or less for those that it holds; None where a loop reads no more, or they were too long."""
    nest = tiling.nest
    other = tiling.persistent or tiling.matrix is not None or tiling.serial or nest.swept
    if other or not nest.inner or _phases(nest) == 1:
        return None
    made = _reduction(nest, tiling.part, held=True)
    row = made.tiles[-1].extent
    if isinstance(row, int) or not made.persistent or not made.along_row:
        return None
    block, seen = dict(made.configs[0].constants)["RBLOCK"], hinted(row, nest.hints)
    held = size(row - block)
    if made.edges is not None:
        return made, (size(held + 1 - made.edges.unit),)
    if block < HALF_FILLED or seen is None or seen % VECTOR == 0:
        return made, (held,)
    return attrs.evolve(made, half_filled=True), (held, size(block // 2 + 1 - row))


def _reduction(nest: Nest, part: Part | None = None, held: bool = False) -> Tiling:
    """``held``: rows of symbolic length count as no longer than they were."""
    typical = typical_offset(nest)
    rows = tuple(v for v in nest.outer if part is None or v is not part.number)
    outer, inner = _by_stride(rows, typical, nest.hints), nest.inner
    if not any(map(_counts_along, walk(*nest.roots))):
        inner = _by_stride(inner, typical, nest.hints)
    groups = [("x", outer)] if outer else []
    tiles, stores = _over_tiles(nest, [*groups, ("r", inner)])
    along_row = is_along_row(nest)
    row = tiles[-1].extent
    shared = along_row and _phases(nest) == 1 and _shares_rows(nest)
    longest = LONGEST_SHARED if shared else _longest_block(nest, along_row)
    edges = None if part is not None or shared else _edges(nest, tiles, stores)
    persistent = _is_persistent(hinted(row, nest.hints) if held else row, longest, None if held else part)
    if shared:
        made = _shared_configs(row, persistent)
    elif edges is not None:
        made = _edged_configs(tiles, nest, edges, persistent)
    elif persistent:
        made = _persistent_configs(tiles, power_of_two(estimate(row, nest.hints)), along_row, nest.hints)
    else:
        made = _looped_configs(tiles, along_row, nest, part)
    configs = _even_first(tiles, made)
    return Tiling(tiles, stores, nest, persistent, configs, along_row=along_row, part=part, edges=edges)


def _is_persistent(row: Size | None, longest: int, part: Part | None) -> bool:
    """Whether a row should lie in one block: of a part that may be shorter the last block alone is masked, where it is
    walked."""
    ends_anywhere = part is not None and part.length is not None
    return isinstance(row, int) and row <= longest and not ends_anywhere


def _edges(nest: Nest, tiles: tuple[Tile, ...], stores: tuple[FlatStore, ...]) -> Edges | None:
    """Where rows begin that do not begin at vectors; None where they do, or some do elsewhere than others.

    What all rows share (a weight) is then read element by element, by lanes that hold neighbours.
    """
    row, hints = tiles[-1], nest.hints
    if not is_along_row(nest) or len(tiles) < 2 or estimate(row.extent, hints) < SHORTEST_EDGED:
        return None
    along = _moved_along(row.variable, stores)
    own = [(t, at) for t, at in along if all(tile.variable in at.variables for tile in tiles)]
    if not own or any(stride(at, row.variable, hints) != 1 for _, at in along):
        return None
    unit = max(VECTOR // max(2, nest.tensors[tensor].dtype.itemsize) for tensor, _ in own)
    start, *others = (at - row.variable.index for _, at in own)
    apart = any(not _is_apart_by(other - start, unit, {}) for other in others)
    if apart or unit < LEAST_UNIT or _is_apart_by(start, unit, hints):
        return None
    return Edges(unit, start, len(set(along).difference(own)))


def _moved_along(row: Var, stores: tuple[FlatStore, ...]) -> list[tuple[str, Index]]:
    """What is read and written along a row; nothing where the order of its elements matters."""
    nodes = list(walk(*(root for store in stores for root in store.roots)))
    if any(map(_counts_along, nodes)) or any(store.mode is not None for store in stores):
        return []
    reads = [(node.tensor, node.coords[0]) for node in nodes if node.op == "load"]
    return [(t, at) for t, at in (*reads, *((s.tensor, s.offset) for s in stores)) if row in at.variables]


def _counts_along(node: Expr) -> bool:
    """Whether the order of a row's elements matters to a node."""
    return node.op == "scan" or (node.op == "reduce" and node.payload.kind in _ARGUMENTS)


_ARGUMENTS = ("argmin", "argmax")


def rows_walked(tiling: Tiling, multiprocessors: int) -> Tiling:
    """The tiling with rows of one block walked by as many programs as there is room for, where rows begin anywhere and
    share much.

    What they share is an instruction for each element: a layer norm of 16383 x 4095 bfloat16 takes 113 us with a
    program for each row, 76 us so on an H200.  Each next row is loaded before the one in hand is computed.
    """
    edges = tiling.edges
    if edges is None or edges.shared < MANY_SHARED or not tiling.persistent or len(tiling.tiles) != 2:
        return tiling
    block = dict(tiling.configs[0].constants)["RBLOCK"]
    beside = ELEMENTS_TAKEN // block
    even = all(atom is tiling.tiles[0].variable for atom, _ in edges.start.terms)
    if block < SHORTEST_WALKED or beside < 2 or not even:
        return tiling
    configs = []
    for factor in (1, 2):
        programs = max(1, beside * multiprocessors // factor // edges.unit) * edges.unit
        constants = {"PROGRAMS": programs, "RBLOCK": block, "XBLOCK": 1}
        configs.append(_config(constants, block // LANE_ELEMENTS // 32 * factor))
    return attrs.evolve(tiling, configs=tuple(configs), edges=attrs.evolve(edges, walked=True))


def _edged_configs(tiles: tuple[Tile, ...], nest: Nest, edges: Edges, persistent: bool) -> list[Config]:
    """Configurations of programs that have one row.

    What rows share is an instruction for each element, and a lane that has more of them has more under way: RMS norm of
    16383 x 4095 bfloat16 70 us with 4 warps, 74 us with 8.
    """
    if persistent:
        length = estimate(tiles[-1].extent, nest.hints)
        vectors = max(edges.unit, length - length % edges.unit)
        made = _persistent_configs(tiles, power_of_two(vectors), True, nest.hints)
    else:
        made = _looped_configs(tiles, True, nest, None)
    fewer = 2 if persistent and edges.shared else 1
    blocks = [(dict(config.constants)["RBLOCK"], max(1, config.num_warps // fewer)) for config in made]
    return [_config({"RBLOCK": block, "XBLOCK": 1}, warps) for block, warps in blocks]


def _is_apart_by(distance: Index, unit: int, hints: Mapping[str, int]) -> bool:
    """Whether a distance is a multiple of ``unit`` elements; with ``hints``, whether it was."""
    seen = [hinted(step, hints) for step in (distance.const, *(step for _, step in distance.terms))]
    return all(step is not None and step % unit == 0 for step in seen)


def _longest_block(nest: Nest, along_row: bool) -> int:
    """The longest row that lies in one block."""
    if along_row:
        return PERSISTENT_INNER if _phases(nest) > 1 else LONGEST_PLAIN
    return LONGEST_BUSY if is_walked_once(nest) and len(moved_values(nest)) > 1 else PERSISTENT_OUTER


def _shares_rows(nest: Nest) -> bool:
    """Whether programs read as much that all of them read as of their own: a row times the columns of a matrix.

    It comes from the cache, but is in the way there, and what is computed of it each program computes.
    """
    rows = math.prod(estimate(v.extent, nest.hints) for v in nest.outer)
    if rows < MANY_SHARING or stored_along(nest):
        return False
    along = {node for node in walk(*nest.roots) if node.op == "load" and set(nest.inner) & node.variables}
    own = sum(node.dtype.itemsize for node in along if set(nest.outer) & node.variables)
    shared = sum(node.dtype.itemsize for node in along if not set(nest.outer) & node.variables)
    return 0 < own <= shared


def _shared_configs(row: Size, persistent: bool) -> list[Config]:
    """Several rows a program, which read once what they share; short blocks of long rows, without a rest if may be."""
    if persistent:
        block = power_of_two(row)
        shapes = ((4, 8), (2, 4), (4, 4), (8, 8), (1, 4))
        return [_config({"XBLOCK": x, "RBLOCK": block}, max(1, min(w, x * block // 512))) for x, w in shapes]
    even = next((b for b in (2048, 1024) if isinstance(row, int) and row % b == 0), 2048)
    return [_config({"XBLOCK": x, "RBLOCK": even}, w) for x, w in ((4, 8), (2, 4), (2, 8), (8, 8), (1, 4))]


def _swept(nest: Nest) -> Tiling:
    """Rows of one block, walked in each program: ``x`` is the last outer loop, the others are programs."""
    *programs, last = nest.outer
    if not nest.inner or not isinstance(product(v.extent for v in nest.inner), int):
        raise UnsupportedError("a sum across rows of a kernel without rows of a known length")
    many = {v for v in programs if v.extent != 1}
    if any(store.mode == "sum" and not store.variables >= many for store in nest.stores):
        raise UnsupportedError("a sum across rows of several programs")
    tiles, stores = _over_tiles(nest, [("x", (last,)), ("r", nest.inner)])
    row = power_of_two(tiles[-1].extent)
    most = _block(last.extent, 64)
    picks = dict.fromkeys(min(most, max(1, n // row)) for n in (2048, 4096, 1024))
    configs = [_config({"XBLOCK": pick, "RBLOCK": row}, w) for pick in picks for w in _warps(pick * row)]
    largest = max(math.prod(dict(config.constants).values()) for config in configs)
    stages = STAGES if (STAGES - 1) * largest * _element_bytes(nest) <= AHEAD_BYTES else 1
    return Tiling(tiles, stores, nest, True, _even_first(tiles, configs[:4]), program=tuple(programs), stages=stages)


def _element_bytes(nest: Nest) -> int:
    """Bytes read for each point of the loops."""
    found = {node for node in walk(*nest.roots) if node.op == "load" and set(nest.inner) & node.variables}
    return sum(node.dtype.itemsize for node in found if set(nest.outer) & node.variables)


def _phases(nest: Nest) -> int:
    """How often the row is walked: once for each reduction that needs another's result, and once for stores."""
    is_row = functools.partial(reduces_row, nest)
    nodes = list(walk(*nest.roots))
    at_once = softmax_sums(filter(is_row, nodes), is_row)
    levels: dict[Expr, int] = {}
    for node in nodes:
        below = max((levels[child] for child in node.children()), default=0)
        levels[node] = levels[at_once[node]] if node in at_once else below + is_row(node)
    rows = max(levels.values(), default=0)
    return rows + bool(stored_along(nest))


def _persistent_configs(tiles: tuple[Tile, ...], row: int, along_row: bool, hints: Mapping[str, int]) -> list[Config]:
    """``row``: the block of a row."""
    if len(tiles) == 1:
        return [_config({"RBLOCK": row}, w) for w in _warps(row)]
    extent = tiles[0].extent
    if not along_row:
        return _column_blocks(extent, row, hints)
    most = _block(extent, 1024)
    picks = [max(1, 1024 // row), max(1, 4096 // row), 1]
    configs = []
    for pick in dict.fromkeys(min(p, most) for p in picks):
        configs += [_config({"XBLOCK": pick, "RBLOCK": row}, w) for w in _warps(pick * row)]
    return configs[:5]


def _column_blocks(extent: Size, row: int, hints: Mapping[str, int]) -> list[Config]:
    """Whole columns: 64 elements a thread at most, and as many columns as fill sectors and leave programs enough."""
    wide = 64 if row <= 64 else 32
    picks = (16, wide) if estimate(extent, hints) < FEW_COLUMNS else (wide, 16)
    pairs = [(min(pick, _block(extent, pick)), warps) for warps in (4, 8) for pick in picks]
    return [_config({"XBLOCK": x, "RBLOCK": row}, min(w, max(1, x * row // 128))) for x, w in pairs]


def _warps(elements: int) -> list[int]:
    """Warps for a block: about 16 elements a thread, and half as many."""
    first = min(32, max(1, power_of_two(elements // 512)))
    second = min(32, max(1, first * 2))
    return list(dict.fromkeys([first, second]))


def _looped_configs(tiles: tuple[Tile, ...], along_row: bool, nest: Nest, part: Part | None) -> list[Config]:
    row, hints = tiles[-1].extent, nest.hints
    seen = hinted(row, hints)
    if len(tiles) == 1:
        most = 8192 if seen is None or seen > SHORT_ROW else max(SHORTEST_BLOCK, power_of_two(seen))
        shapes = ((4096, 16), (2048, 8), (8192, 16))
        return [_config({"RBLOCK": _block(row, min(most, b))}, min(w, max(1, most // 256))) for b, w in shapes]
    rows = estimate(tiles[0].extent if part is None else tiles[0].extent * part.number.extent, hints)
    if not along_row:
        blocks = _column_shapes(rows, walked_columns(nest))
    elif seen is not None and not isinstance(row, int) and seen <= SHORT_ROW:
        # Most of a longer block would be masked off.
        block = max(SHORTEST_BLOCK, power_of_two(seen))
        blocks = tuple((max(1, n // block), block, max(1, n // 512)) for n in (4096, 2048, 8192))
    elif rows < MANY_ROWS:
        blocks = ((1, 4096, 16), (1, 2048, 8), (2, 2048, 8), (4, 1024, 8))
    else:
        blocks = ((1, 4096, 4), (1, 8192, 8), (1, 4096, 16), (4, 1024, 8))
    most = _block(tiles[0].extent, 1024)
    return [_config({"XBLOCK": min(x, most), "RBLOCK": _block(row, r)}, w) for x, r, w in blocks]


def _column_shapes(columns: int, walked: WalkedColumns) -> tuple[tuple[int, int, int], ...]:
    """Blocks of columns that are walked in a loop, or such that give programs where there are few columns."""
    if columns < FEW_COLUMNS:
        return (16, 128, 4), (16, 256, 8), (32, 64, 4), (16, 64, 4)
    warps = min(8, walked.columns * walked.rows // 512)
    return (walked.columns, walked.rows, warps), (32, 128, 8), (64, 64, 8), (32, 64, 4)


@attrs.frozen
class WalkedColumns:
    """How columns that lie side by side are walked: those that a program takes, the rows that it reads at once, and
    the programs that a multiprocessor should have.

    A program waits for what it reads before it asks for more, so that what is under way on a multiprocessor is what
    its programs read at once: from 32 to 64 KiB on, and in one turn of programs, an H200 reads at up to 98 % of what a
    copy does.
    """

    columns: int
    rows: int
    resident: int


WALKED_IN_PART = WalkedColumns(32, 64, 16)
"""Where the last block of rows is one in part: masks take registers, too."""
VECTOR = 16
"""Bytes that a thread loads in one instruction where it may; so many elements of any type are whole vectors."""
FEW_IN_PART = 4
"""Blocks of rows from which on the last, which alone is masked, counts for little."""


def walked_columns(nest: Nest) -> WalkedColumns:
    """The shape nearest to the best over eight sizes from 8192 x 768 to 200704 x 256 on an H200.

    Sums of columns, as a share of the copy: bfloat16 16384 x 4096 27 % to 86 %, 65536 x 1024 26 to 88, 12544 x 1024 79
    to 90; float32 16384 x 4096 53 to 93, 200704 x 256 53 to 77.  Two values a point, bfloat16: 39 to 89, 38 to 56, 43
    to 52; float32 56 to 98, 53 to 52.
    """
    walked, moved = columns_in_vectors(nest), moved_values(nest)
    length = product(v.extent for v in nest.inner)
    if isinstance(length, int) and length % walked.rows == 0:
        return walked
    seen = estimate(length, nest.hints)
    if seen < FEW_IN_PART * walked.rows:
        return WALKED_IN_PART
    if _begins_at_vectors(nest, moved):
        return walked if seen % walked.rows == 0 else columns_to_any_row(nest)
    if isinstance(length, int):
        return WALKED_IN_PART
    return WalkedColumns(walked.columns, walked.rows // 2, 2 * walked.resident)  # each element is a load


def columns_to_any_row(nest: Nest) -> WalkedColumns:
    """The same of columns of which the last block of rows alone, whatever it has, is masked.

    16383 x 4095 bfloat16 in blocks of 128 x 64, 128 x 128 and 64 x 128: 37.1, 40.1 and 37.7 us, of symbolic length 68,
    36.9 and 45.4 us: it hangs on the order in which ptxas has a block's loads.
    """
    walked = columns_in_vectors(nest)
    if walked.columns == WALKED_IN_PART.columns:
        return walked
    known = isinstance(product(v.extent for v in nest.inner), int)
    return attrs.evolve(walked, columns=128, rows=64 if known else 128)


def columns_in_vectors(nest: Nest) -> WalkedColumns:
    """The same of columns whose every block is read in whole vectors of elements."""
    moved = moved_values(nest)
    many = math.prod(estimate(v.extent, nest.hints) for v in nest.loops) >= MANY_WALKED
    reductions = sum(reduces_row(nest, node) for node in walk(*nest.roots))
    if len(moved) > 1 or reductions > 1 or has_moments(nest):  # each keeps blocks of results in registers
        return WalkedColumns(32, 128, 4)
    if any(dtype.itemsize > 2 for dtype in moved):
        return WalkedColumns(32, 256, 8 if many else 2)
    return WalkedColumns(64 if many else 32, 256, 2)


def _begins_at_vectors(nest: Nest, moved: list[torch.dtype]) -> bool:
    """Whether rows of columns begin where vectors do, if they are like those that the graph was made for."""
    typical = typical_offset(nest)
    steps = [estimate(typical.coefficient(v), nest.hints) for v in nest.inner]
    return all(step * dtype.itemsize % VECTOR == 0 for step in steps for dtype in moved)
