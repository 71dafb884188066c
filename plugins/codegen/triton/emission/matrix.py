"""The body of a kernel that computes products of matrices: a tile of sums in registers, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from turret.ir.analysis.contraction import Contraction
from turret.ir.analysis.groups import RowGroups
from turret.ir.expr import Expr, rewrite
from turret.ir.index import Var, product, unflatten
from turret.ir.nest import FlatStore
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.groups import open_group
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.matrix import Operand, matrix_products, of_tile, operand_of
from turret.plugins.codegen.triton.tiles.sizes import size_text
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, Tile

GROUP = 8
"""Rows of tiles that are computed side by side, so that what they read of the right operand is still in the cache."""


def matrix_grid(emitter: Emitter, form: MatrixForm) -> str:
    """How many programs run, as Python text."""
    counts = [f"cdiv({size_text(t.extent, lambda name: name)}, {t.block})" for t in emitter.tiling.tiles]
    if form.groups is not None:
        counts[0] = f"({counts[0]} + {form.groups.count})"  # each group may end with a tile that is not full
    if form.batch:
        counts.append(size_text(product(v.extent for v in form.batch), lambda name: name))
    return " * ".join(counts)


def write_matrix(emitter: Emitter, form: MatrixForm, store: Callable[[list[FlatStore], Scope], None]) -> None:
    """Write the body: where the program's tile is, its sums over the depth, and the stores."""
    base = emitter.base
    found = matrix_products(emitter.tiling.stores, form)
    _open_tiles(emitter, form, found[0].groups)
    deep = emitter.size(form.depth.extent) if form.groups is None else "deep"
    scope = Scope(base, f"for depth in range(0, {deep}, RBLOCK):")
    wide = ".to(tl.int64)" if emitter.wide else ""
    scope.line(f"rows_of = (depth + tl.arange(0, RBLOCK))[None, :]{wide}")
    scope.line(f"columns_of = (depth + tl.arange(0, RBLOCK))[:, None]{wide}")
    masked = _needs_mask(emitter, form)
    if masked:
        extent = emitter.size(form.depth.extent)
        scope.line(f"rows_inside = rows_of < {extent}")
        scope.line(f"columns_inside = columns_of < {extent}")
    writer = _Factors(emitter, form, scope, masked)
    totals = [_sum(emitter, writer, node) for node in found]
    scope.close()
    for node, total in zip(found, totals, strict=True):
        base.names[node.node, None] = total
    store(list(emitter.tiling.stores), base)


def _sum(emitter: Emitter, writer: _Factors, node: Contraction) -> str:
    total = emitter.fresh("total")
    emitter.base.line(f"{total} = tl.zeros({emitter.shape(frozenset(emitter.tiles))}, tl.float32)")
    y, _ = emitter.tiling.tiles
    factors = (node.left, node.right) if y.variable in node.left.variables else (node.right, node.left)
    left, right = (writer.block(factor, along) for factor, along in zip(factors, ("rows", "columns"), strict=True))
    writer.scope.line(f"{total} = tl.dot({left}, {right}, {total})")
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


class _Factors:
    """Blocks of the factors at one step of the depth, each loaded once."""

    def __init__(self, emitter: Emitter, form: MatrixForm, scope: Scope, masked: bool) -> None:
        self.emitter, self.form, self.scope, self.masked = emitter, form, scope, masked
        self.known: dict[tuple[Expr, str], str] = {}

    def block(self, factor: Expr, side: str) -> str:
        """The name of the block of a factor whose depth lies along its ``rows`` or its ``columns``.

        What lies beyond the depth is zero on both sides: a zero times whatever memory held may be a NaN.
        """
        if (factor, side) not in self.known:
            operand = operand_of(of_tile(factor), self.form.depth)
            made = self._compute(of_tile(factor), side) if operand is None else self._load(operand, side)
            self.known[factor, side] = made
        return self.known[factor, side]

    def _compute(self, factor: Expr, side: str) -> str:
        """A block that is made of others, as dequantised weights are, in the type that it is rounded to."""
        depth = Var(f"{side}_of", self.form.depth.extent)
        self.scope.variables[depth] = depth.name
        emitter = _FactorEmitter(self.emitter, side, depth)
        if self.masked:
            self.scope.names[f"{depth.name}mask"] = f"{side}_inside"
        rounded = rewrite(factor.args[0], {self.form.depth: depth.index})
        value = emitter.value(rounded, self.scope)
        value = emitter.spread(value, emitter.span(rounded), frozenset(emitter.tiles))
        if self.masked:
            value = f"tl.where({side}_inside, {value}, 0.0)"
        name = self.emitter.fresh("block")
        self.scope.line(f"{name} = ({value}).to({_HALF[rounded.dtype]})")
        return name

    def _load(self, operand: Operand, side: str) -> str:
        emitter, tiles = self.emitter, self.emitter.tiling.tiles
        along: Tile = tiles[0] if side == "rows" else tiles[1]
        start = emitter.index(operand.start, emitter.base)
        start = emitter.named(emitter.base, ("start", start), "start", start)
        step = "" if operand.step == 1 else f" * {emitter.size(operand.step)}"
        masks = [emitter.tile_mask(along, emitter.base)] if emitter.tiling.needs_mask(along) else []
        masks += [f"{side}_inside"] if self.masked else []
        arguments = [f"{emitter.pointer(operand.load.tensor)} + ({start} + {side}_of{step})"]
        if masks:
            arguments += [f"mask={' & '.join(masks)}", "other=0.0"]
        name = emitter.fresh("block")
        self.scope.line(f"{name} = tl.load({', '.join(arguments)})")
        return name


def _open_tiles(emitter: Emitter, form: MatrixForm, groups: RowGroups | None) -> None:
    """Bind the variables of the tiles and of the batch; ``groups``, if there are some, are those of the tiles' rows."""
    base, (y, x) = emitter.base, emitter.tiling.tiles
    wide = ".to(tl.int64)" if emitter.wide else ""
    base.line(f"program = tl.program_id(0){wide}")
    for tile in (y, x):
        base.line(f"{tile.letter}count = tl.cdiv({emitter.size(tile.extent)}, {tile.block})")
    if groups is not None:
        base.line(f"ycount += {groups.count}")
    if form.batch:
        base.line("batch = program // (ycount * xcount)")
        base.line("program = program % (ycount * xcount)")
        extents = tuple(v.extent for v in form.batch)
        number = Var("batch", product(extents))
        base.variables[number] = "batch"
        for variable, place in zip(form.batch, unflatten(number.index, extents), strict=True):
            text = emitter.index(place, base)
            base.variables[variable] = emitter.named(base, ("batch", text), "batch", text)
    base.line(f"first = program // ({GROUP} * xcount) * {GROUP}")
    base.line(f"height = tl.minimum(ycount - first, {GROUP})")
    base.line(f"within = program % ({GROUP} * xcount)")
    if groups is None:
        base.line(f"y = (first + within % height) * {y.block} + tl.arange(0, {y.block})[:, None]")
    else:
        base.line("tile = first + within % height")
        open_group(emitter, form, groups)
    base.line(f"x = within // height * {x.block} + tl.arange(0, {x.block})[None, :]")
    base.variables[y.variable], base.variables[x.variable] = "y", "x"
