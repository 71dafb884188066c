"""Products whose columns are read in slices, as a gate and what it lets through are that one matrix gives.

    both = x @ w; silu(both[:, :n]) * both[:, n:]

A kernel that computes a slice of the columns cannot hold the other one's, unless each is a product of its own: of the
same rows with other columns of the matrix.  Then both are parts of the reader's kernel, and need no memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from turret.ir import Expr, Index, Var, contractions, has_matrix_product, loads, product, rewrite
from turret.plugins.schedule.fusion.inline import at
from turret.plugins.schedule.fusion.roundings import skip_rounding
from turret.plugins.schedule.fusion.units import Unit

MOST_SLICES = 2
"""Products of one kernel: each keeps a tile of sums in registers."""


def split_into_slices(units: Sequence[Unit], needed: set[str], elide_casts: bool) -> list[Unit]:
    """Units with such products computed where they are read; the whole ones are left out.

    ``needed`` are tensors that must lie in memory; ``elide_casts``: whether a half type's rounding between is dropped.
    """
    readers: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        for name in unit.reads():
            readers[name].append(unit)
    gone = {
        unit.tensor.name
        for unit in units
        if unit.is_loop and unit.tensor.name not in needed and _moved(unit, readers[unit.tensor.name], elide_casts)
    }
    return [unit for unit in units if not (unit.is_loop and unit.tensor.name in gone)]


def _moved(unit: Unit, readers: Sequence[Unit], elide_casts: bool) -> bool:
    """Compute a product in the one unit that reads it, in slices; False where it stays."""
    if not unit.rows or unit.scans or len(readers) != 1 or not contractions(unit.expr):
        return False
    (reader,) = readers
    if not reader.is_loop or reader.rows or not _are_slices(unit, reader):
        return False
    name = unit.tensor.name

    def replace(node: Expr) -> Expr | None:
        if node.op == "load" and node.tensor == name:
            return at(unit, node.coords)
        return skip_rounding(node) if elide_casts else None

    reader.expr = rewrite(reader.expr, replace=replace)
    reader.rows, reader.is_matrix_product = unit.rows, has_matrix_product(reader.expr)
    return True


def _are_slices(unit: Unit, reader: Unit) -> bool:
    """Whether a reader takes each element of a unit once, at points that are one step apart of those before."""
    sites = [node.coords for node in loads(reader.expr) if node.tensor == unit.tensor.name]
    if not 2 <= len(sites) <= MOST_SLICES:
        return False
    parts = product(v.extent for v in reader.variables) * len(sites)
    if parts != product(unit.tensor.shape) or not all(v.extent == 1 or _moves(v, sites[0]) for v in reader.variables):
        return False
    first, second = sites
    apart = [(a - b, product(v.extent for v in a.variables)) for a, b in zip(second, first, strict=True) if a is not b]
    if len(apart) != 1:
        return False
    ((step, extent),) = apart
    return step.is_constant and bool(abs(step.const) == extent)


def _moves(variable: Var, coords: Sequence[Index]) -> bool:
    """Whether one coordinate goes along a loop, by one element a step, and no other does."""
    along = [coord for coord in coords if variable in coord.variables]
    return len(along) == 1 and len(along[0].terms) == 1 and along[0].coefficient(variable) == 1
