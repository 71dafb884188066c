"""Products of matrices: which nests are some, and the tiles that matrix instructions compute them in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import attrs

from turret.graph.dtypes import HALF
from turret.ir.analysis.contraction import Contraction, contraction
from turret.ir.analysis.groups import MOST_GROUPS, RowGroups, picked_group
from turret.ir.expr import OPS, Expr, index_value, rewrite, walk
from turret.ir.index import Div, Index, Mod, Size, Var, flatten, product, provably_nonnegative, unflatten
from turret.ir.nest import FlatStore, Nest, substitute
from turret.plugins.codegen.triton.tiles.accesses import stride
from turret.plugins.codegen.triton.tiles.kernel import Config, DeviceProperties
from turret.plugins.codegen.triton.tiles.sizes import estimate
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, Tile, Tiling, power_of_two

THIN = 16
"""Rows or columns of the least tile that matrix instructions take: products with no more mostly read memory."""

LEAST_WINDOW = 32
"""Channels, or a power of two that divides them, from which on blocks of the depth stay within a place of a window."""

LEAST_DEPTH = 256
"""Shortest part of the depth that is worth a program of its own."""


@attrs.frozen(eq=False)
class Operand:
    """A factor in memory: where its element at depth 0 lies, and how far apart the steps of the depth are."""

    load: Expr
    start: Index
    step: Size


def matrix_form(nest: Nest) -> MatrixForm | None:
    """What a nest is as a product of matrices in a half type; None where it is something else beside or instead."""
    found = _products(nest)
    if not found or not all(_is_over_same_loops(found[0], other) for other in found[1:]):
        return None
    rows, columns, batch, groups = found[0].rows, found[0].columns, found[0].batch, found[0].groups
    if rows | columns | batch != set(nest.outer):
        return None
    if groups is not None:
        if groups.row.variables != rows:
            rows, columns = columns, rows
        if not _is_in_groups(nest, groups, rows):
            return None
    elif _is_transposed(nest, rows, columns):
        rows, columns = columns, rows

    def ordered(side: Collection[Var]) -> tuple[Var, ...]:
        return tuple(v for v in nest.outer if v in side)

    return MatrixForm(ordered(rows), ordered(columns), ordered(batch), found[0].depth, groups)


def _is_in_groups(nest: Nest, groups: RowGroups, rows: Collection[Var]) -> bool:
    """Whether the rows that are in groups are those of the tiles, one after another."""
    loops = [v for v in nest.outer if v in rows]
    return flatten([v.index for v in loops], [v.extent for v in loops]) is groups.row and set(loops) == set(rows)


def _products(nest: Nest) -> list[Contraction]:
    """The products of matrices that a nest sums along its row; empty where it computes anything else along it."""
    if len(nest.inner) != 1 or nest.scattered or nest.swept or nest.scan_variables:
        return []
    (depth,) = nest.inner
    found = [c for node in nest.reductions if (c := contraction(node)) is not None and _is_matrix(c, depth)]
    others = len(found) < len(nest.reductions) or any(depth in store.variables for store in nest.stores)
    return [] if others else found


def _is_over_same_loops(one: Contraction, other: Contraction) -> bool:
    if (one.groups is None) != (other.groups is None):
        return False
    if one.groups is not None and other.groups is not None and one.groups.node is not other.groups.node:
        return False
    return one.batch == other.batch and {one.rows, one.columns} == {other.rows, other.columns}


def _is_matrix(found: Contraction, depth: Var) -> bool:
    factors = found.left, found.right
    if not found.is_matrix or found.depth is not depth:
        return False
    if any(operand_of(of_tile(f), depth) is None and not _is_computed(f) for f in factors):
        return False
    return found.left.args[0].dtype == found.right.args[0].dtype


def _is_computed(factor: Expr) -> bool:
    """Whether a factor is rounded to a half type, of which matrix instructions take it, and simple to compute."""
    if factor.op != "cast" or factor.args[0].dtype not in HALF or factor.reports:
        return False
    return all(node.op in _SIMPLE or node.op in OPS for node in walk(factor))


_SIMPLE = ("load", "const", "index", "size", "cast", "bitcast", "masked")


@attrs.frozen(eq=False)
class Gathered:
    """A factor in memory whose elements lie at no equal distances along the depth, as those of a convolution's windows:
    an element, and where there is one (elsewhere it is zero); None for everywhere."""

    load: Expr
    inside: Expr | None


def gathered_of(factor: Expr) -> Gathered | None:
    """A factor as such elements; None where it is computed."""
    if factor.op != "cast" or factor.args[0].dtype not in HALF:
        return None
    value, inside = factor.args[0], None
    if value.op == "masked":
        inside, value, outside = value.args
        if outside.op != "const" or outside.payload != 0:
            return None
    return Gathered(value, inside) if value.op == "load" else None


def window_of(stores: Iterable[FlatStore], form: MatrixForm) -> int:
    """How many steps of the depth at a time the windows of a convolution need no division: the channels, if all that
    divides the depth divides it into whole ones of them; 1 where nothing is read in windows."""
    found = 0
    for product_ in matrix_products(tuple(stores), form):
        for factor in (product_.left, product_.right):
            read = gathered_of(of_tile(factor)) if operand_of(of_tile(factor), form.depth) is None else None
            roots = () if read is None else (read.load, *(() if read.inside is None else (read.inside,)))
            for index in (i for node in walk(*roots) for i in _indices(node)):
                found = math.gcd(found, *_divisors(index, form.depth))
    return found or 1


def _indices(node: Expr) -> tuple[Index, ...]:
    if node.op == "index":
        return (node.payload,)
    return node.coords if node.op == "load" else ()


def _divisors(index: Index, depth: Var) -> list[int]:
    """What an index divides a loop by; 1 among it for something that is not the loop itself."""
    found: list[int] = []
    for atom, _ in index.terms:
        if not isinstance(atom, (Div, Mod)) or depth not in atom.variables:
            continue
        numerator, divisor = atom.numerator, atom.divisor
        if numerator.single_variable is depth:
            found.append(divisor if isinstance(divisor, int) else 1)
        else:
            found += _divisors(numerator, depth) or [1]
    return found


def operand_of(factor: Expr, depth: Var) -> Operand | None:
    """A factor as it lies in memory; None where it is computed, or its place is no multiple of the depth.

    Its rows may be read where indices say: those are the same all along the depth.
    """
    if factor.op != "cast" or factor.args[0].op != "load" or factor.args[0].dtype not in HALF:
        return None
    read = factor.args[0]
    (offset,) = read.coords
    if any(depth in atom.variables for atom, _ in offset.terms if atom is not depth):
        return None
    checks = [v.payload for value in offset.values for v in walk(value) if v.op == "check_index"]
    if not all(provably_nonnegative(extent - 1) for extent in checks):
        return None  # what was checked against an empty tensor is no place in it
    step = offset.coefficient(depth)
    return Operand(read, offset - depth.index * step, step)


TILE_GROUP = Var("group", MOST_GROUPS)
"""The group that all rows of a tile are in."""


def of_tile(factor: Expr) -> Expr:
    """A factor of a tile: if it is picked by the group of a row, by that of all of them."""

    def replace(node: Expr) -> Expr | None:
        return None if picked_group(node) is None else index_value(TILE_GROUP)

    return rewrite(factor, replace=replace)


def _is_transposed(nest: Nest, rows: frozenset[Var], columns: frozenset[Var]) -> bool:
    """Whether what is stored is contiguous along the rows of the first product, and not along its columns."""
    store = nest.stores[-1]

    def contiguous(side: frozenset[Var]) -> bool:
        return any(stride(store.offset, v, nest.hints) == 1 for v in side)

    return contiguous(rows) and not contiguous(columns)


def matrix_tiling(nest: Nest, form: MatrixForm) -> Tiling:
    """Tiles of ``y`` rows by ``x`` columns, whose programs walk the depth in blocks; each of a batch has its own."""
    y = Var("y", product(v.extent for v in form.rows))
    x = Var("x", product(v.extent for v in form.columns))
    mapping = dict(zip(form.rows, unflatten(y.index, tuple(v.extent for v in form.rows)), strict=True))
    mapping |= dict(zip(form.columns, unflatten(x.index, tuple(v.extent for v in form.columns)), strict=True))
    stores: tuple[FlatStore, ...] = substitute(nest, mapping)
    tiles = Tile(y, form.rows), Tile(x, form.columns)
    rows, columns, depth = (estimate(v.extent, nest.hints) for v in (y, x, form.depth))
    configs = _configs(rows, columns, depth)
    if form.groups is not None:
        configs = _grouped_configs(rows, columns, depth, form.groups.count)
    sums = len(matrix_products(stores, form))
    configs = tuple(config for config in configs if sums * registers(config) <= MOST_SUMS)
    window = window_of(stores, form)
    block = largest_block(window)
    if block >= LEAST_WINDOW:
        form = attrs.evolve(form, window=window)
        configs = tuple(dict.fromkeys(_with_depth(config, block) for config in configs))
    return Tiling(tiles, stores, nest, True, configs, matrix=form)


def largest_block(window: int) -> int:
    """The largest power of two that divides a window."""
    return window & -window


def _with_depth(config: Config, most: int) -> Config:
    """A configuration whose blocks are no deeper than that."""
    return attrs.evolve(config, constants=tuple((n, min(v, most) if n == "RBLOCK" else v) for n, v in config.constants))


def registers(config: Config) -> int:
    """Registers of a thread that hold a tile of sums."""
    blocks = dict(config.constants)
    return blocks["YBLOCK"] * blocks["XBLOCK"] * blocks.get("PARTS", 1) // (32 * config.num_warps)


def sides_of(found: Contraction, rows: Var) -> tuple[Expr, Expr]:
    """The factors of a product: first the one that varies along the ``rows`` of the tiles."""
    return (found.left, found.right) if rows in found.left.variables else (found.right, found.left)


def matrix_products(stores: tuple[FlatStore, ...], form: MatrixForm) -> list[Contraction]:
    """The products in the stores of a tiling, each once."""
    roots = (root for store in stores for root in store.roots)
    found = [contraction(node) for node in walk(*roots) if node.op == "reduce"]
    return [c for c in found if c is not None and c.depth is form.depth]


_BLOCKS = (
    (128, 256, 64, 8, 3),
    (128, 128, 64, 8, 3),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (128, 64, 64, 4, 4),
    (32, 64, 128, 4, 4),
)
"""Rows, columns and depth of a block, warps and stages."""
_THIN_BLOCKS = ((128, 128, 4, 4), (64, 256, 4, 4), (64, 128, 4, 4), (32, 128, 2, 6), (32, 128, 4, 5), (128, 64, 4, 5))
"""The same where one side is thin: the other side, the depth, warps and stages; the second and what follows where the
first gives too few tiles."""
MOST_SUMS = 128
"""Registers of a thread that may hold sums: with more, others have to wait in memory."""
ENOUGH_TILES = 100
"""Tiles of the largest size that fill a device; where there are fewer, smaller ones come first."""


def _configs(rows: int, columns: int, depth: int) -> tuple[Config, ...]:
    if min(rows, columns) <= THIN:
        thin_rows = rows <= columns
        few = -(-max(rows, columns) // _THIN_BLOCKS[0][0]) < ENOUGH_TILES
        ordered = (*_THIN_BLOCKS[1:], _THIN_BLOCKS[0]) if few else _THIN_BLOCKS
        shapes = [(THIN, long, *rest) if thin_rows else (long, THIN, *rest) for long, *rest in ordered]
    else:
        shapes = sorted(_BLOCKS, key=lambda shape: _tiles(rows, columns, shape) < ENOUGH_TILES)
        if _tiles(rows, columns, shapes[0]) < ENOUGH_TILES:
            shapes = shapes[::-1]
    return _of_depth(shapes, depth)


def _of_depth(shapes: Iterable[tuple[int, ...]], depth: int) -> tuple[Config, ...]:
    """Configurations of blocks, none deeper than the product."""
    most = max(16, power_of_two(depth))
    found = [
        Config((("RBLOCK", min(block, most)), ("XBLOCK", x), ("YBLOCK", y)), warps, stages)
        for y, x, block, warps, stages in shapes
    ]
    return tuple(dict.fromkeys(found))


def _grouped_configs(rows: int, columns: int, depth: int, groups: int) -> tuple[Config, ...]:
    """Tiles of rows in groups: first those that are no taller than most groups, of the wide ones."""
    group = max(1, rows // groups)
    if group <= THIN < columns:
        shapes = [(THIN, wide, *rest) for wide, *rest in _THIN_BLOCKS]
    else:
        shapes = sorted(_BLOCKS, key=lambda shape: shape[0] > power_of_two(group))
        if _tiles(rows, columns, shapes[0]) < ENOUGH_TILES:
            shapes = sorted(shapes[::-1], key=lambda shape: shape[0] > power_of_two(group))
    return _of_depth(shapes, depth)


def _tiles(rows: int, columns: int, shape: tuple[int, ...]) -> int:
    return -(-rows // shape[0]) * -(-columns // shape[1])


def depth_parts(nest: Nest, form: MatrixForm, properties: DeviceProperties) -> int:
    """Into how many parts to divide the depth, so that there are programs for all multiprocessors; 1 for none.

    Parts are of equal length: what would have to be masked is no matrix in memory.
    """
    hints: Mapping[str, int] = nest.hints
    depth = form.depth.extent
    rows, columns, batch = (
        estimate(product(v.extent for v in loops), hints) for loops in (form.rows, form.columns, form.batch)
    )
    if not isinstance(depth, int) or depth < 2 * LEAST_DEPTH or form.groups is not None:
        return 1
    blocks = dict(_configs(rows, columns, depth)[0].constants)
    programs = batch * -(-rows // blocks["YBLOCK"]) * -(-columns // blocks["XBLOCK"])
    wanted = min(properties.multiprocessors // programs, depth // LEAST_DEPTH, 8)
    block, within = blocks["RBLOCK"], largest_block(window_of(nest.stores, form))
    block = min(block, within) if within >= LEAST_WINDOW else block
    return next((p for p in range(wanted, 1, -1) if depth % (p * block) == 0), 1)
