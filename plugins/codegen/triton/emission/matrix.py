"""The body of a kernel that computes products of matrices: a tile of sums in registers, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from turret.ir.analysis.contraction import Contraction
from turret.ir.analysis.groups import RowGroups
from turret.ir.expr import Expr, rewrite
from turret.ir.index import Index, Var, product, unflatten
from turret.ir.nest import FlatStore
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.groups import count_groups, open_group
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.matrix import (
    Gathered,
    Operand,
    gathered_of,
    matrix_products,
    of_tile,
    operand_of,
    sides_of,
)
from turret.plugins.codegen.triton.tiles.sizes import size_text
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, Tile

GROUP = 8
"""Rows of tiles that are computed side by side, so that what they read of the right operand is still in the cache."""


def matrix_grid(emitter: Emitter, form: MatrixForm) -> str:
    """How many programs run, as Python text."""
    tiling = emitter.tiling
    counts = [f"cdiv({size_text(t.extent, lambda name: name)}, {tiling.width(t)})" for t in tiling.tiles]
    if form.groups is not None:
        counts[0] = f"({counts[0]} + {form.groups.count})"  # each group may end with a tile that is not full
    if form.batch:
        counts.append(size_text(product(v.extent for v in form.batch), lambda name: name))
    return " * ".join(counts)


def write_matrix(emitter: Emitter, form: MatrixForm, store: Callable[[list[FlatStore], Scope], None]) -> None:
    """Write the body: where the program's tile is, its sums over the depth, and the stores."""
    base, x = emitter.base, emitter.tiling.tiles[-1]
    found = matrix_products(emitter.tiling.stores, form)
    wide = ".to(tl.int64)" if emitter.wide else ""
    base.line(f"program = tl.program_id(0){wide}")
    count_tiles(emitter, form)
    open_tile(emitter, form, base, found[0].groups)
    base.line(f"x = column * {x.block} + tl.arange(0, {x.block})[None, :]")
    base.variables[x.variable] = "x"
    scope = depth_loop(emitter, form, base)
    shape = emitter.shape(frozenset(emitter.tiles))
    totals = write_sums(Factors(emitter, form, base, scope), found, shape)
    scope.close()
    for node, total in zip(found, totals, strict=True):
        base.names[node.node, None] = total
    store(list(emitter.tiling.stores), base)


def depth_loop(emitter: Emitter, form: MatrixForm, outer: Scope) -> Scope:
    """The loop of one tile over blocks of the depth; ``outer`` is the scope of the tile."""
    deep = emitter.size(form.depth.extent) if form.groups is None else "deep"
    return Scope(outer, f"for depth in range(0, {deep}, RBLOCK):")


def write_sums(factors: Factors, found: list[Contraction], shape: str) -> list[str]:
    """Write one step of the depth of each product; the names of their sums, blocks of a ``shape``."""
    return [_sum(factors, node, shape) for node in found]


def _sum(factors: Factors, node: Contraction, shape: str) -> str:
    emitter = factors.emitter
    total = emitter.fresh("total")
    factors.outer.line(f"{total} = tl.zeros({shape}, tl.float32)")
    sides = sides_of(node, emitter.tiling.tiles[0].variable)
    left, right = (factors.block(factor, side) for factor, side in zip(sides, ("rows", "columns"), strict=True))
    factors.scope.line(f"{total} = tl.dot({left}, {right}, {total})")
    return total


def _needs_mask(emitter: Emitter, form: MatrixForm) -> bool:
    extent = form.depth.extent
    blocks = [dict(config.constants)["RBLOCK"] for config in emitter.tiling.configs]
    return not isinstance(extent, int) or any(extent % block for block in blocks)


_HALF = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}


class _DepthTile(Tile):
    """The depth as a dimension of a block of a factor."""

    @property
    def block(self) -> str:
        return "RBLOCK"


class _FactorEmitter(Emitter):
    """Writes what a factor is made of, as blocks of its rows or columns and of the depth, into the same kernel."""

    def __init__(self, kernel: Emitter, side: str, depth: Var) -> None:
        y, x = kernel.tiling.tiles
        along = _DepthTile(depth, (depth,))
        super().__init__(attrs.evolve(kernel.tiling, tiles=(y, along) if side == "rows" else (along, x)), kernel.narrow)
        self.base, self.wide, self.half = kernel.base, kernel.wide, kernel.half
        self.pointers, self.symbols, self.streams = kernel.pointers, kernel.symbols, kernel.streams
        self.sizes, self._count = kernel.sizes, kernel._count


class Factors:
    """Blocks of the factors at one step of the depth, each loaded once.

    ``scope`` is the loop over the depth, ``outer`` the tile around it.
    """

    def __init__(self, emitter: Emitter, form: MatrixForm, outer: Scope, scope: Scope) -> None:
        self.emitter, self.form, self.outer, self.scope = emitter, form, outer, scope
        self.masked = _needs_mask(emitter, form)
        self.known: dict[tuple[Expr, str], str] = {}

    def block(self, factor: Expr, side: str) -> str:
        """The name of the block of a factor whose depth lies along its ``rows`` or its ``columns``.

        What lies beyond the depth is zero on both sides: a zero times whatever memory held may be a NaN.
        """
        if (factor, side) not in self.known:
            own = of_tile(factor)
            operand, gathered = operand_of(own, self.form.depth), gathered_of(own)
            if operand is not None:
                made = self.load(operand, side)
            else:
                made = self._compute(own, side) if gathered is None else self._gather(gathered, side)
            self.known[factor, side] = made
        return self.known[factor, side]

    def _along(self, side: str) -> str:
        """The name of where a block of a side lies along the depth."""
        name = f"{side}_of"
        if name not in self.scope.names:
            wide = ".to(tl.int64)" if self.emitter.wide else ""
            lanes = "[None, :]" if side == "rows" else "[:, None]"
            self.scope.line(f"{name} = (depth + tl.arange(0, RBLOCK)){lanes}{wide}")
            if self.masked:
                self.scope.line(f"{side}_inside = {name} < {self.emitter.size(self.form.depth.extent)}")
            self.scope.names[name] = name
        return name

    def _inside(self, side: str) -> tuple[_FactorEmitter, dict[Var, Index]]:
        """What writes a factor as a block, and what the depth is in it.

        Blocks that lie within one place of a window have the same place all along, a number.
        """
        name = self._along(side)
        window = self.form.window
        if window == 1:
            depth = Var(name, self.form.depth.extent)
            places = {self.form.depth: depth.index}
            if self.masked:
                self.scope.names[f"{name}mask"] = f"{side}_inside"
        else:
            place, depth = Var("place", self.form.depth.extent // window), Var(f"{side}_channel", window)
            if place not in self.scope.variables:
                self.scope.line(f"place = depth // {window}")
                self.scope.variables[place] = "place"
            self.scope.line(f"{depth.name} = {name} - place * {window}")
            places = {self.form.depth: place.index * window + depth.index}
        self.scope.variables[depth] = depth.name
        return _FactorEmitter(self.emitter, side, depth), places

    def _compute(self, factor: Expr, side: str) -> str:
        """A block that is made of others, as dequantised weights are, in the type that it is rounded to."""
        emitter, places = self._inside(side)
        rounded = rewrite(factor.args[0], places)
        value = emitter.value(rounded, self.scope)
        value = emitter.spread(value, emitter.span(rounded), frozenset(emitter.tiles))
        if self.masked:
            value = f"tl.where({side}_inside, {value}, 0.0)"
        name = self.emitter.fresh("block")
        self.scope.line(f"{name} = ({value}).to({_HALF[rounded.dtype]})")
        return name

    def _gather(self, factor: Gathered, side: str) -> str:
        """A block of elements that lie anywhere, in the type that they have in memory: so they are loaded ahead."""
        emitter, places = self._inside(side)
        read = rewrite(factor.load, places)
        (offset,) = read.coords
        inside = None if factor.inside is None else rewrite(factor.inside, places)
        text = emitter.spread(emitter.index(offset, self.scope), offset.variables, frozenset(emitter.tiles))
        masks = emitter.masks(frozenset(emitter.tiles), self.scope, inside)
        arguments = [f"{emitter.pointer(read.tensor)} + ({text})"]
        if masks:
            arguments += [f"mask={masks}", "other=0.0"]
        name = self.emitter.fresh("block")
        self.scope.line(f"{name} = tl.load({', '.join(arguments)})")
        return name

    def load(self, operand: Operand, side: str) -> str:
        """The name of a block of an operand."""
        emitter, tiles = self.emitter, self.emitter.tiling.tiles
        along: Tile = tiles[0] if side == "rows" else tiles[1]
        start = emitter.index(operand.start, self.outer)
        start = emitter.named(self.outer, ("start", start), "start", start)
        step = "" if operand.step == 1 else f" * {emitter.size(operand.step)}"
        masks = [emitter.tile_mask(along, self.outer)] if emitter.tiling.needs_mask(along) else []
        place = self._along(side)
        masks += [f"{side}_inside"] if self.masked else []
        arguments = [f"{emitter.pointer(operand.load.tensor)} + ({start} + {place}{step})"]
        if masks:
            arguments += [f"mask={' & '.join(masks)}", "other=0.0"]
        name = emitter.fresh("block")
        self.scope.line(f"{name} = tl.load({', '.join(arguments)})")
        return name


def count_tiles(emitter: Emitter, form: MatrixForm) -> None:
    """Write how many tiles there are along the rows and the columns."""
    base = emitter.base
    for tile in emitter.tiling.tiles:
        base.line(f"{tile.letter}count = tl.cdiv({emitter.size(tile.extent)}, {emitter.tiling.width(tile)})")
    if form.groups is not None:
        base.line(f"ycount += {form.groups.count}")
        count_groups(emitter, form.groups)


def open_tile(emitter: Emitter, form: MatrixForm, scope: Scope, groups: RowGroups | None) -> None:
    """Bind the rows and the batch of tile number ``program`` in its ``scope``, and write the number of its ``column``.

    ``groups``, if there are some, are those of the tiles' rows.
    """
    y, _ = emitter.tiling.tiles
    if form.batch:
        scope.line("batch = program // (ycount * xcount)")
        scope.line("program = program % (ycount * xcount)")
        extents = tuple(v.extent for v in form.batch)
        number = Var("batch", product(extents))
        scope.variables[number] = "batch"
        for variable, place in zip(form.batch, unflatten(number.index, extents), strict=True):
            text = emitter.index(place, scope)
            scope.variables[variable] = emitter.named(scope, ("batch", text), "batch", text)
    scope.line(f"first = program // ({GROUP} * xcount) * {GROUP}")
    scope.line(f"height = tl.minimum(ycount - first, {GROUP})")
    scope.line(f"within = program % ({GROUP} * xcount)")
    if groups is None:
        scope.line(f"begin = (first + within % height) * {y.block}")
        scope.line(f"y = begin + tl.arange(0, {y.block})[:, None]")
    else:
        scope.line("tile = first + within % height")
        open_group(emitter, form, groups, scope)
    scope.line("column = within // height")
    scope.variables[y.variable] = "y"
