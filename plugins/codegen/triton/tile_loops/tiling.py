"""Loops over the tiles of a product of matrices: programs that compute several tiles each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from turret.ir.nest import FlatStore
from turret.plugins.codegen.triton.tile_loops.descriptors import DESCRIBES_FROM, TensorDescriptor, descriptor_of
from turret.plugins.codegen.triton.tiles.kernel import Config, DeviceProperties
from turret.plugins.codegen.triton.tiles.matrix import (
    MOST_SUMS,
    THIN,
    Operand,
    largest_block,
    matrix_products,
    of_tile,
    operand_of,
    registers,
    sides_of,
)
from turret.plugins.codegen.triton.tiles.tiling import MatrixForm, TileLoop, Tiling, power_of_two

_DESCRIBED = (
    (128, 128, 2, 64, 8, 3, True),
    (128, 256, 1, 64, 8, 3, True),
    (128, 256, 1, 64, 8, 3, False),
    (128, 128, 1, 64, 8, 4, True),
    (64, 128, 1, 64, 4, 4, True),
)
"""Rows and columns of a block that is stored at once, how many of those lie side by side in a tile, depth, warps,
stages, and whether the loops over tiles and over the depth are made one.

Measured on an H200 with Triton 3.6: loops whose warps are specialised (some do nothing but load) gained 1 % at most,
and gave wrong results with an epilogue; tiles divided over programs along the depth (stream-K) were behind whole ones
at all of 14 shapes."""
_PLAIN = (
    (128, 256, 1, 64, 8, 3, True),
    (128, 128, 1, 64, 8, 3, True),
    (128, 128, 1, 32, 4, 4, True),
    (64, 128, 1, 64, 4, 4, True),
)
"""The same where some operand is read through pointers."""


def tile_loop(tiling: Tiling, properties: DeviceProperties) -> Tiling | None:
    """The same nest of static sizes as a loop over tiles; None where that is no use."""
    form = tiling.matrix
    if form is None or min(tile.extent for tile in tiling.tiles) <= THIN:
        return None
    has_descriptors = properties.capability >= DESCRIBES_FROM
    described = [describe_operand(tiling, form, *each) for each in _operands(tiling, form)]
    if has_descriptors and not any(described):
        return None
    whole = has_descriptors and all(described)
    configs = tuple(_configs(tiling, form, _DESCRIBED if whole else _PLAIN, properties))
    return attrs.evolve(tiling, configs=configs, loop=TileLoop(has_descriptors, whole)) if configs else None


def describe_operand(tiling: Tiling, form: MatrixForm, operand: Operand | None, side: str) -> TensorDescriptor | None:
    """The descriptor of an operand's blocks of [rows, depth] or [depth, columns]; None where there is none."""
    if operand is None:
        return None
    offset = operand.start + form.depth.index * operand.step
    y, x = tiling.tiles
    loops = (y.variable, form.depth) if side == "rows" else (form.depth, x.variable)
    return descriptor_of(tiling.nest.tensors[operand.load.tensor], offset, *loops)


def describe_store(tiling: Tiling, store: FlatStore) -> TensorDescriptor | None:
    """The descriptor of the blocks that a store writes whole; None where there is none."""
    y, x = tiling.tiles
    in_groups = tiling.matrix is not None and tiling.matrix.groups is not None
    if in_groups or store.mode is not None or store.condition is not None:
        return None
    found = descriptor_of(tiling.nest.tensors[store.tensor], store.offset, y.variable, x.variable)
    return None if found is None or found.turned else found


def _operands(tiling: Tiling, form: MatrixForm) -> Iterator[tuple[Operand | None, str]]:
    """All operands, None in the place of computed ones, with the side that they are on."""
    for product in matrix_products(tiling.stores, form):
        for factor, side in zip(sides_of(product, tiling.tiles[0].variable), ("rows", "columns"), strict=True):
            yield operand_of(of_tile(factor), form.depth), side


def _configs(
    tiling: Tiling, form: MatrixForm, shapes: Iterable[tuple[int, ...]], properties: DeviceProperties
) -> Iterator[Config]:
    """Configurations of tiles that are not far larger than the result."""
    sums = len(matrix_products(tiling.stores, form))
    rows, columns, depth = (power_of_two(v.extent) for v in (*(t.variable for t in tiling.tiles), form.depth))
    most = largest_block(form.window) if form.window > 1 else max(16, depth)
    for y, x, parts, block, warps, stages, flat in shapes:
        constants = {
            "FLAT": int(flat and form.groups is None),
            "PARTS": parts,
            "PROGRAMS": properties.multiprocessors,
            "RBLOCK": min(block, most),
            "XBLOCK": x,
            "YBLOCK": y,
        }
        config = Config(tuple(constants.items()), warps, stages)
        if y <= rows and x * parts <= columns and sums * registers(config) <= MOST_SUMS:
            yield config
