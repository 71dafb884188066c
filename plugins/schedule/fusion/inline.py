"""Inlining: pointwise values that need not exist in memory become part of the expressions that use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from turret.graph.dtypes import HALF
from turret.hooks.devices import device_for
from turret.ir import Definition, Expr, cast, contractions, defined, keep_checks, rewrite, used
from turret.ir.analysis.contraction import group_ends
from turret.ir.expr import loads
from turret.ir.index import Index, Size, hinted, product, provably_nonnegative
from turret.plugins.schedule.fusion.one_hot import fold_one_hot_sums
from turret.plugins.schedule.fusion.roundings import decisive_tensors, keep_roundings, skip_rounding
from turret.plugins.schedule.fusion.units import Unit, expression_size, is_cheap, row_variables, work

LARGEST_EXPRESSION = 400
"""Nodes; beyond this an expression spills registers, and compiling it takes long."""

REPEATED_WORK = 16
"""Simple operations an element that may be done again to spare a write and a read of it (branches of ``cat``,
repeated heads); arithmetic in registers is about that much cheaper than a pass over memory."""

MOST_OPERANDS = 4
"""Terms of a sum in a half type that may be added up again instead of rounded and loaded.  Twelve layers of GPT-2 in
bfloat16, 128 wide, come out 0.90 % from float32's with none, 0.71 % with 2, 0.62 % with 3 and 0.59 % with 4 (eager
0.95 %; what tells them apart is the rounding of the residual stream)."""
LARGEST_OPERAND = 32 << 20
"""Bytes; larger ones leave a GPU's second-level cache (50 MB) before they are read again, and their lives, which are
longer then, lie at the peak of memory (one of the first stage of ConvNeXt in batches of 64 has 37 MB)."""

MOST_DEQUANTISED = 64
"""Rows of a product whose weights are dequantised by each of its programs."""

LAUNCH_ELEMENTS, LAUNCH_WORK = 1 << 13, 16
"""A GPU kernel of at most so many elements costs its launch alone (2 us, or 8 MB of memory traffic), so that
expressions of so much work (an ``rsqrt`` a channel) are cheaper computed anew by every lane that reads them."""


def inline(units: list[Unit], needed: set[str], elide_casts: bool, hints: Mapping[str, int]) -> list[Unit]:
    """Units that remain after pointwise definitions went into their users.

    ``needed`` are tensors that must lie in memory.  A value with one user, computed no more often than before,
    always goes; one with several only if recomputing it reads no more than loading it would (sizes being as ``hints``
    say).  Units are taken in program order, so chains collapse in one pass.
    """
    by_tensor = {unit.tensor.name: unit for unit in units if unit.is_loop}
    in_half = elide_casts and any(unit.tensor.dtype in HALF for unit in by_tensor.values())
    levels = _levels(units) if in_half else {}
    defined = ((unit.tensor.name, unit.expr) for unit in units if unit.value is not None)
    decisive = decisive_tensors(defined) if in_half else frozenset()
    users = _users(units)
    gone: set[str] = set()
    for unit in units:
        if unit.value is None:
            continue
        if elide_casts:
            unit.expr = keep_roundings(unit.expr, decisive)
        substitute(unit, by_tensor, gone, elide_casts)
        _simplify_rows(unit)
        name = unit.tensor.name
        if name in needed or not users[name]:
            continue
        if _inlinable(unit, users[name], hints) or (
            in_half and _keeps_a_rounding_away(unit, users[name], levels, by_tensor, needed)
        ):
            gone.add(name)
            _keep_instructions_rounding(unit, users[name])
    return _alive(units, gone, needed)


def _keep_instructions_rounding(unit: Unit, users: list[Unit]) -> None:
    """Have a computed operand of a matrix product rounded to the type that matrix instructions take."""
    if unit.expr.op == "cast" and any(user.is_matrix_product for user in users):
        unit.expr = cast(unit.expr.args[0], unit.expr.dtype, exact=True)


def _simplify_rows(unit: Unit) -> None:
    """Fold what the reductions of a unit make unnecessary, by which it may lose some."""
    if unit.rows:
        unit.expr = fold_one_hot_sums(unit.expr)
        unit.rows, unit.scans = row_variables(unit.expr)


def _users(units: list[Unit]) -> Mapping[str, list[Unit]]:
    """The units that read each tensor."""
    users: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        for name in unit.reads():
            users[name].append(unit)
    return users


def _alive(units: list[Unit], gone: set[str], needed: set[str]) -> list[Unit]:
    """Without definitions that are gone, and those that nothing reads any more (zeros that a scatter fills in itself).

    One that may report an error is computed all the same: eager raises it, read or not.
    """
    wanted = set(needed)
    kept: list[Unit] = []
    for unit in reversed(units):
        if unit.is_loop and unit.tensor.name in gone:
            continue
        if not unit.is_loop or unit.tensor.name in wanted or unit.expr.reports:
            wanted.update(unit.reads())
            kept.append(unit)
    return kept[::-1]


def substitute(unit: Unit, by_tensor: dict[str, Unit], gone: set[str], elide_casts: bool) -> None:
    """Replace a unit's loads of inlined tensors by their expressions at the loaded coordinates."""
    if unit.value is None or not any(node.tensor in gone for node in loads(unit.expr)):
        return

    def replace(node: Expr) -> Expr | None:
        if node.op == "load" and node.tensor in gone:
            return at(by_tensor[node.tensor], node.coords)
        return skip_rounding(node) if elide_casts else None

    unit.expr = rewrite(unit.expr, replace=replace)


def at(producer: Unit | Definition, coords: tuple[Index, ...]) -> Expr:
    """A producer's value at coordinates, which are still checked if the value is the same at all of them."""
    return keep_checks(rewrite(producer.expr, dict(zip(producer.variables, coords, strict=True))), coords)


def _inlinable(unit: Unit, users: list[Unit], hints: Mapping[str, int]) -> bool:
    """Whether a unit can go into all of its users, and no more is read and computed than if it did not."""
    if unit.rows or not users or not _can_take(users, unit):
        return False
    if expression_size(unit.expr) > LARGEST_EXPRESSION // 4 and len(users) > 1:
        return False
    sites = [(user, coords) for user in users for coords in _sites(user, unit)]
    if unit.expr.reports and not all(_is_bijection(coords, unit) for _, coords in sites):
        return False
    return _pays(unit, sites, hints)


def _pays(unit: Unit, sites: list[tuple[Unit, tuple[Index, ...]]], hints: Mapping[str, int]) -> bool:
    """Whether a value is better computed at the places (a user, and coordinates) that it is read at than stored."""
    cheap = is_cheap(unit.expr)
    if not loads(unit.expr) and cheap:
        return True
    if len(sites) == 1:
        ((user, coords),) = sites
        as_operand = user.is_matrix_product and is_dequantised(unit, user)
        if as_operand or _is_operand_in_memory(unit, user, coords) or not _repeated(unit, user, coords, hints):
            return True
        cheap = cheap or _is_mere_launch(unit)
    return cheap and _reads_little(unit, hints)


def _can_take(users: list[Unit], unit: Unit) -> bool:
    """Whether all users are expressions which the unit's does not make too large."""
    own = expression_size(unit.expr)
    products = [user for user in users if user.is_matrix_product]
    if any(unit.tensor.name in group_ends(user.expr) for user in products):
        return False
    if products and unit.expr.op != "load" and not (len(users) == 1 and is_dequantised(unit, products[0])):
        return False  # matrix instructions take their operands as they lie in memory
    return all(user.value is not None and expression_size(user.expr) + own <= LARGEST_EXPRESSION for user in users)


def is_dequantised(unit: Unit, user: Unit) -> bool:
    """Whether a unit is an operand in a half type, made of fewer bytes, of a product whose other side is so short that
    it is made few times."""
    rounded = unit.expr.op == "cast" and unit.expr.dtype in HALF
    if not rounded or unit.rows or unit.expr.reports or work(unit.expr) > REPEATED_WORK or _gathers(unit):
        return False
    whole = frozenset(v for v in unit.variables if v.extent != 1)
    read = {node.tensor: node.dtype.itemsize for node in loads(unit.expr) if whole <= node.variables}
    if not 0 < sum(read.values()) < unit.tensor.dtype.itemsize:
        return False
    return all(_is_few(other) for other in _other_sides(unit.tensor.name, user.expr))


def _other_sides(name: str, expr: Expr) -> list[Size]:
    """How many rows or columns there are on the other side, of each product that a tensor is an operand of."""
    found: list[Size] = []
    for each in contractions(expr):
        for factor, side in ((each.left, each.columns), (each.right, each.rows)):
            if any(node.tensor == name for node in loads(factor)):
                found.append(product(v.extent for v in side))
    return found


def _is_few(extent: Size) -> bool:
    return isinstance(extent, int) and extent <= MOST_DEQUANTISED


def _is_operand_in_memory(unit: Unit, user: Unit, coords: tuple[Index, ...]) -> bool:
    """Whether a unit is rows that a matrix product reads where they lie, as well as from a copy: those that indices
    pick are picked once for all of the depth."""
    read = at(unit, coords) if user.is_matrix_product else unit.expr
    if read.op != "load" or not user.is_matrix_product:
        return False
    return not any(depth in value.variables for coord in read.coords for value in coord.values for depth in user.rows)


def _levels(units: list[Unit]) -> dict[str, int]:
    """For each tensor how many calls at most lie before it: a kernel cannot compute tensors of several levels."""
    levels: dict[str, int] = {}
    for unit in units:
        level = max((levels.get(name, 0) for name in used(unit.statement)), default=0)
        for tensor in defined(unit.statement):
            levels[tensor.name] = level + (not unit.is_loop)
    return levels


def _keeps_a_rounding_away(
    unit: Unit, users: list[Unit], levels: dict[str, int], by_tensor: dict[str, Unit], needed: set[str]
) -> bool:
    """Whether a sum in a half type (a residual stream) is better added up again than rounded and loaded.

    It is where one later kernel needs it: with two operands as many bytes are moved either way, and what is added up
    in float32 is nearer to the exact sum.
    """
    if unit.tensor.dtype not in HALF or unit.rows or not is_cheap(unit.expr) or not _can_take(users, unit):
        return False
    operands = {node.tensor for node in loads(unit.expr) if node.variables}
    if not 2 <= len(operands) <= MOST_OPERANDS or _gathers(unit) or _is_large(unit):
        return False
    own = levels[unit.tensor.name]
    if len({levels[u.tensor.name] for u in users} - {own}) > 1:
        return False
    return all(name in needed or name not in by_tensor or levels[name] < own for name in operands)


def _gathers(unit: Unit) -> bool:
    return any(coord.values for node in loads(unit.expr) for coord in node.coords)


def _is_large(unit: Unit) -> bool:
    elements = product(v.extent for v in unit.variables)
    return isinstance(elements, int) and elements * unit.tensor.dtype.itemsize > LARGEST_OPERAND


def _is_mere_launch(unit: Unit) -> bool:
    own = product(v.extent for v in unit.variables)
    small = isinstance(own, int) and own <= LAUNCH_ELEMENTS
    return device_for(unit.tensor.device.type).asynchronous and small and work(unit.expr) <= LAUNCH_WORK


def _reads_little(unit: Unit, hints: Mapping[str, int]) -> bool:
    """Whether computing the unit again reads about as much as loading its value: one tensor, or small ones beside."""
    touched: dict[str, Size] = {}
    for node in loads(unit.expr):
        if node.variables:
            touched[node.tensor] = product(v.extent for v in node.variables) * node.dtype.itemsize
    own = product(v.extent for v in unit.variables) * unit.tensor.dtype.itemsize
    spared = 5 * own - 4 * sum(touched.values())
    seen = hinted(spared, hints)
    return len(touched) <= 1 or (provably_nonnegative(spared) if seen is None else seen >= 0)


def _sites(user: Unit, unit: Unit) -> list[tuple[Index, ...]]:
    return [node.coords for node in loads(user.expr) if node.tensor == unit.tensor.name]


def _repeated(unit: Unit, user: Unit, coords: tuple[Index, ...], hints: Mapping[str, int]) -> bool:
    """Whether the user would compute elements of the unit more often than the unit itself, at some cost."""
    if is_cheap(unit.expr):
        return False
    if all(c.is_constant for c in coords):
        return user.iterations != 1
    sizes = product(v.extent for v in unit.variables), user.iterations
    own, iterations = (hinted(value, hints) for value in sizes)
    if own is not None and iterations is not None:
        return (iterations - own) * work(unit.expr) > REPEATED_WORK * own
    return not provably_nonnegative(sizes[0] - sizes[1])


def _is_bijection(coords: tuple[Index, ...], unit: Unit) -> bool:
    moving = [c for c in coords if not c.is_constant]
    variables = [variable for c in moving if (variable := c.single_variable) is not None]
    extents = [v.extent for v in unit.variables if v.extent != 1]
    return len(set(variables)) == len(moving) and [v.extent for v in variables] == extents
