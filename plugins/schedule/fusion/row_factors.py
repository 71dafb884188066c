"""Factors of a sum along a row that are made of sums along the same row, as the norm in front of a product is.

A product of one row with a matrix reads the row in each of its programs anyway, so that each can sum the row's squares
along with it: ``sum(x * rsqrt(sum(x * x)) * w)`` is ``rsqrt(sum(x * x)) * sum(x * w)``, in one pass.  That spares the
kernel of one program that would do nothing else, for which a GPU takes longer than for what it computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from turret.hooks.devices import device_for
from turret.ir import Expr, call, product, reduce, rewrite, walk
from turret.ir.expr import loads
from turret.plugins.schedule.fusion.units import Unit, work

LONGEST = 1 << 13
"""Elements of a row that each program may sum for itself."""
MOST_WORK = 16
"""Simple operations an element of such a sum."""


def fold_row_factors(units: Sequence[Unit], needed: set[str]) -> list[Unit]:
    """Units whose sums have such factors computed along with them; values that nobody reads any more are left out.

    ``needed`` are tensors that must lie in memory.
    """
    by_tensor = {unit.tensor.name: unit for unit in units if unit.is_loop}
    readers: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        for name in unit.reads():
            readers[name].append(unit)
    gone: set[str] = set()
    for unit in units:
        if unit.is_loop and _is_row_scalar(unit) and unit.tensor.name not in needed:
            gone |= _folded(unit, readers, by_tensor, needed)
    return [unit for unit in units if not (unit.is_loop and unit.tensor.name in gone)]


def _is_row_scalar(unit: Unit) -> bool:
    """Whether a unit is one number, made on a device where a launch takes longer than that."""
    return product(unit.tensor.shape) == 1 and device_for(unit.tensor.device.type).asynchronous


def _folded(unit: Unit, readers: Mapping[str, list[Unit]], by_tensor: Mapping[str, Unit], needed: set[str]) -> set[str]:
    """Fold a number into the sums of all its readers; the names of what is not read any more, none where it stays."""
    value, inside = _resolved(unit, readers, by_tensor, needed)
    users = readers[unit.tensor.name]
    if not users or not _fits(value, users):
        return set()
    changed = [_without_factor(user.expr, unit.tensor.name, value) for user in users]
    if None in changed:
        return set()
    for user, expr in zip(users, changed, strict=True):
        user.value = expr
        for name in user.reads():
            readers[name] += [] if user in readers[name] else [user]
    return {unit.tensor.name, *inside}


def _fits(value: Expr, users: Sequence[Unit]) -> bool:
    """Whether a number is made of short sums along the row that all who read it sum along, for many elements each."""
    sums = [node for node in walk(value) if node.op == "reduce"]
    if not sums or not all(map(_is_short, sums)) or not all(user.is_loop for user in users):
        return False
    rows = {node.payload.variables for node in sums}
    return all({user.rows} == rows and not user.scans and product(user.tensor.shape) != 1 for user in users)


def _resolved(
    unit: Unit, readers: Mapping[str, list[Unit]], by_tensor: Mapping[str, Unit], needed: set[str]
) -> tuple[Expr, set[str]]:
    """A number's expression with that of the sum which nobody else reads, and the name of that sum."""
    inside = {
        name
        for name in unit.reads()
        if name in by_tensor
        and name not in needed
        and readers[name] == [unit]
        and by_tensor[name].rows
        and product(by_tensor[name].tensor.shape) == 1
    }

    def replace(node: Expr) -> Expr | None:
        return by_tensor[node.tensor].expr if node.op == "load" and node.tensor in inside else None

    return rewrite(unit.expr, replace=replace), inside


def _is_short(node: Expr) -> bool:
    """Whether a sum is along a row so short, and of values so simple, that each program may compute it."""
    length = product(v.extent for v in node.payload.variables)
    simple = node.payload.kind == "sum" and work(node.args[0]) <= MOST_WORK and not node.args[0].reports
    return simple and isinstance(length, int) and length <= LONGEST


def _without_factor(expr: Expr, name: str, value: Expr) -> Expr | None:
    """``expr`` with a tensor's only element in front of the sums that it is a factor in; None where it is more."""

    def replace(node: Expr) -> Expr | None:
        if node.op != "reduce" or node.payload.kind != "sum":
            return None
        rest = _divided(node.args[0], name)
        if rest is None or value.dtype != node.dtype:
            return None
        return call("mul", value, reduce("sum", node.payload.variables, rest))

    changed = rewrite(expr, replace=replace)
    return None if any(node.tensor == name for node in loads(changed)) else changed


def _divided(body: Expr, name: str) -> Expr | None:
    """A product without the factor that a tensor's element is; None where it is not one."""
    if body.op != "mul":
        return None
    left, right = body.args
    for one, other in ((left, right), (right, left)):
        if one.op == "load" and one.tensor == name:
            return other
    for one, other in ((left, right), (right, left)):
        rest = _divided(one, name)
        if rest is not None:
            return call("mul", rest, other)
    return None
