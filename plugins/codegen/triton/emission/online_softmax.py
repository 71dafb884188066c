"""The maximum of a row and the sum of exponentials relative to it, in one pass over a row walked in a loop.

Each lane keeps the largest value that it met and the sum of exponentials relative to that; a larger value rescales the
sum.  Where the row is contiguous in memory, the neighbours that one instruction loads are taken in together, so that a
lane rescales once for all of them: on an H200, a cross entropy of 8192 x 32000 bfloat16 went from 60 % of a copy's
bandwidth (row in one block) or 64 % (each value by itself) to 97 %.  See "Online normalizer calculation for softmax",
Milakov and Gimelshein, 2018.
"""

from __future__ import annotations

import functools

from turret.ir.expr import Expr, loads
from turret.plugins.codegen.triton.emission.reductions import RowWriter
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.tiling import VECTOR


def neighbours(writer: RowWriter, node: Expr) -> int:
    """How many elements of a row a lane takes in together, as many as a thread loads at once: 1 where it does
    not hold neighbours."""
    tensors = writer.tiling.nest.tensors
    along = [tensors[n.tensor].dtype.itemsize for n in loads(node.args[0]) if writer.row.variable in n.variables]
    if not writer.tiling.along_row or not along:
        return 1
    return max(1, VECTOR // max(2, *along))


def lane_shape(writer: RowWriter, node: Expr) -> str:
    """The shape of the accumulators."""
    full, group = writer.emitter.shape(writer.full), neighbours(writer, node)
    return f"{full[:-1]} // {group}]" if group > 1 else full


def write_step(writer: RowWriter, node: Expr, best: str, total: str, scope: Scope) -> None:
    """Take one block of the maximum ``node`` into the accumulators ``best`` and ``total``.

    ``tl.exp`` is off by some units of the last place times its argument; a term that far below the maximum is as
    much smaller.
    """
    emitter = writer.emitter
    value, held, larger, base = (emitter.fresh(stem) for stem in ("v", "held", "larger", "base"))
    scope.line(f"{value} = {writer.inside(writer.element(node.args[0], node.dtype, scope), NOTHING, scope)}")
    group = neighbours(writer, node)
    axis, spread = writer.axis, f"{base}[{':, ' * writer.axis}None, :]"
    # A thread that does not load neighbours at once has elements that are far apart, and takes in those together.
    if group > 1 and writer.begins_at_vectors(node):
        lanes = lane_shape(writer, node)
        axis, spread = axis + 1, f"{base}[{':, ' * (axis + 1)}None]"
        scope.line(f"{value} = tl.reshape({value}, {lanes[:-1]}, {group}])")
        scope.line(f"{held} = tl.reduce({value}, {axis}, max_nan)")
    elif group > 1:
        *outer, row = lane_shape(writer, node)[1:-1].split(", ")
        scope.line(f"{value} = tl.reshape({value}, [{', '.join([*outer, str(group), row])}])")
        scope.line(f"{held} = tl.reduce({value}, {axis}, max_nan)")
    else:
        scope.line(f"{held} = {value}")
    scope.line(f"{larger} = max_nan({best}, {held})")
    scope.line(f"{base} = {_finite(larger)}")
    terms = f"tl.sum(tl.exp({value} - {spread}), {axis})" if group > 1 else f"tl.exp({value} - {base})"
    scope.line(f"{total} = {total} * tl.exp({best} - {base}) + {terms}")
    scope.line(f"{best} = {larger}")


def write_end(writer: RowWriter, lanes: list[tuple[str, str]], scope: Scope) -> tuple[str, str]:
    """Names of the row's maximum and sum, from the lanes' own in each part of the row."""
    largest, added = writer.emitter.fresh("max"), writer.emitter.fresh("sum")
    bests = [writer.collapsed_by("max_nan", best) for best, _ in lanes]
    scope.line(f"{largest} = {functools.reduce('max_nan({}, {})'.format, bests)}")
    sums = [writer.collapsed("tl.sum", f"{total} * tl.exp({best} - {_finite(largest)})") for best, total in lanes]
    scope.line(f"{added} = {' + '.join(sums)}")
    # An infinite maximum makes inf - inf of its own element.
    scope.line(f'{added} = tl.where(tl.abs({largest}) == float("inf"), float("nan"), {added})')
    return largest, added


NOTHING = 'float("-inf")'
"""The maximum of no elements."""


def _finite(best: str) -> str:
    """A maximum to subtract: of nothing, zero, so that exponentials relative to it are zero."""
    return f"tl.where({best} == {NOTHING}, 0.0, {best})"
