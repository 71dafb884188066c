"""The body of a kernel whose programs compute several tiles of a product of matrices each."""

from __future__ import annotations

from collections.abc import Callable

from turret.ir.nest import FlatStore
from turret.ir.program import TensorDecl
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.matrix import (
    Factors,
    count_tiles,
    depth_loop,
    matrix_grid,
    open_tile,
    write_sums,
)
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tile_loops.descriptors import TensorDescriptor
from turret.plugins.codegen.triton.tile_loops.tiling import describe_operand, describe_store
from turret.plugins.codegen.triton.tiles.dtypes import triton_type
from turret.plugins.codegen.triton.tiles.matrix import Operand, matrix_products
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, TileLoop

Store = Callable[[list[FlatStore], Scope], None]


def tile_loop_grid(emitter: Emitter, form: MatrixForm) -> str:
    """How many programs run, as Python text."""
    return f"min(PROGRAMS, {matrix_grid(emitter, form)})"


def write_tile_loop(emitter: Emitter, form: MatrixForm, loop: TileLoop, store: Store) -> None:
    """Write the body: a loop over tiles, in it one over the depth, and the stores of each tile."""
    base, (y, x) = emitter.base, emitter.tiling.tiles
    found = matrix_products(emitter.tiling.stores, form)
    count_tiles(emitter, form)
    counts = ["ycount", "xcount", *(str(v.extent) for v in form.batch)]
    tile = Scope(base, f"for turn in tl.range(tl.program_id(0), {' * '.join(counts)}, PROGRAMS, flatten=FLAT):")
    tile.line(f"program = turn{'.to(tl.int64)' if emitter.wide else ''}")
    open_tile(emitter, form, tile, found[0].groups)
    width = emitter.tiling.width(x)
    tile.line(f"across = column * {width}")
    if not loop.described:
        tile.line(f"x = across + tl.arange(0, {x.block})[None, :]")
        tile.variables[x.variable] = "x"
    scope = depth_loop(emitter, form, tile)
    descriptors = Descriptors(emitter)
    factors = DescribedFactors(emitter, form, tile, scope, descriptors)
    totals = write_sums(factors, found, f"[{y.block}, {width}]")
    scope.close()
    part = _parts(emitter, tile, totals) if loop.described else tile
    for node, total in zip(found, totals, strict=True):
        part.names[node.node, None] = f"{total}part" if loop.described else total
    _store(emitter, descriptors, loop, part, store)
    if part is not tile:
        part.close()
    tile.close()


def _parts(emitter: Emitter, tile: Scope, totals: list[str]) -> Scope:
    """The loop over the parts that a tile of the result is stored in, each of which waits for less shared memory."""
    y, x = emitter.tiling.tiles
    for total in totals:
        halves = f"tl.split(tl.permute(tl.reshape({total}, [{y.block}, 2, {x.block}]), [0, 2, 1]))"
        tile.line(f"{total}left, {total}right = {halves} if PARTS == 2 else ({total}, {total})")
    part = Scope(tile, "for part in tl.static_range(PARTS):")
    for total in totals:
        part.line(f"{total}part = {total}left if part == 0 else {total}right")
    part.line(f"x = across + part * {x.block} + tl.arange(0, {x.block})[None, :]")
    part.variables[x.variable] = "x"
    return part


def _store(emitter: Emitter, descriptors: Descriptors, loop: TileLoop, scope: Scope, store: Store) -> None:
    """Store all results of a tile, or of a part of one: by descriptors where there are some.

    All values come first, as always: a store may take over the memory of what another value reads.
    """
    stores = list(emitter.tiling.stores)
    found = [describe_store(emitter.tiling, s) if loop.has_descriptors else None for s in stores]
    described = [(s, each) for s, each in zip(stores, found, strict=True) if each is not None]
    full = frozenset(emitter.tiles)
    values = [emitter.spread(emitter.value(s.expr, scope), emitter.span(s.expr), full) for s, _ in described]
    rest = [s for s, each in zip(stores, found, strict=True) if each is None]
    if rest:
        store(rest, scope)
    across = f"across + part * {emitter.tiling.tiles[1].block}" if loop.described else "across"
    for (_, each), value in zip(described, values, strict=True):
        descriptors.store(each, value, ("begin", across), scope)


class Descriptors:
    """The descriptors of a kernel, each made once, at its top."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter

    def load(self, found: TensorDescriptor, block: tuple[str, str], places: tuple[str, str], scope: Scope) -> str:
        """A block of what a descriptor shows, as an expression; its size and place in the order in which loops were
        asked for."""
        blocks, places = self._in_memory(found, block), self._in_memory(found, places)
        text = f"{self._name(found, blocks)}.load([{self._places(found, places, scope)}])"
        if found.step:
            text = f"tl.reshape({text}, [{', '.join(blocks)}])"
        return f"tl.trans({text})" if found.turned else text

    def store(self, found: TensorDescriptor, value: str, places: tuple[str, str], scope: Scope) -> None:
        """Write a block of the result, of which what lies beyond the end of the matrix is left out."""
        y, x = self.emitter.tiling.tiles
        value = f"({value}).to({triton_type(self._decl(found).dtype).element})"
        if found.step:
            value = f"tl.reshape({value}, [1, {y.block}, {x.block}])"
        name = self._name(found, (y.block, x.block))
        scope.line(f"{name}.store([{self._places(found, places, scope)}], {value})")

    def _decl(self, found: TensorDescriptor) -> TensorDecl:
        return self.emitter.tensors[found.tensor]

    @staticmethod
    def _in_memory(found: TensorDescriptor, pair: tuple[str, str]) -> tuple[str, str]:
        return (pair[1], pair[0]) if found.turned else pair

    def _name(self, found: TensorDescriptor, blocks: tuple[str, str]) -> str:
        leading = (found.count, found.step) if found.step else None
        shape = [*([found.count] if leading else []), *found.extents]
        strides = [*([found.step] if leading else []), found.stride, 1]
        block = [*(["1"] if leading else []), *blocks]
        pointer = self.emitter.pointer(found.tensor)
        self.emitter.described.add(pointer)
        text = f"tl.make_tensor_descriptor({pointer}, {shape}, {strides}, [{', '.join(block)}])"
        return self.emitter.named(self.emitter.base, ("descriptor", text), "matrix", text)

    def _places(self, found: TensorDescriptor, places: tuple[str, str], scope: Scope) -> str:
        wide = self.emitter.wide
        texts = [f"({place}).to(tl.int32)" if wide and place != "depth" else place for place in places]
        if found.step:
            number = self.emitter.index(found.number, scope)
            texts.insert(0, number if number.isdigit() else f"({number}).to(tl.int32)")
        return ", ".join(texts)


class DescribedFactors(Factors):
    """Blocks of factors, of operands by descriptors where there are some."""

    def __init__(
        self, emitter: Emitter, form: MatrixForm, outer: Scope, scope: Scope, descriptors: Descriptors
    ) -> None:
        super().__init__(emitter, form, outer, scope)
        self.descriptors = descriptors

    def load(self, operand: Operand, side: str) -> str:
        loop, tiling = self.emitter.tiling.loop, self.emitter.tiling
        found = describe_operand(tiling, self.form, operand, side) if loop and loop.has_descriptors else None
        if found is None:
            return super().load(operand, side)
        y, x = tiling.tiles
        rows = side == "rows"
        block = (y.block, "RBLOCK") if rows else ("RBLOCK", tiling.width(x))
        places = ("begin", "depth") if rows else ("depth", "across")
        name = self.emitter.fresh("block")
        self.scope.line(f"{name} = {self.descriptors.load(found, block, places, self.outer)}")
        return name
