"""Conditions around reductions and scans: moved from where a result is wanted to what it is made of.

A value under a condition (inside of ``masked``) may be unsafe to compute where the condition does not hold: its loads
may lie outside of their tensors.  A code generator therefore computes such a value under its condition.  That cannot be
done to a reduction along a row, which has one value for the whole row, or to a scan, which needs every element up to
one: under a condition that differs from element to element they would leave elements out.

``mask_operands`` makes both safe to compute at every point: where any element of the row wants the result, all of its
operands are wanted; elsewhere they are zeros, and the result is not used.

Loops are conditions too: what none of a loop's variables determines is computed ahead of it, and a loop over a size
that depends on data may have no step.  ``mask_hoisted`` keeps what is computed for no element from reporting an error,
and from reading a tensor that has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import attrs
import torch

from turret.ir.expr import Expr, call, constant, divides_by_zero, loads, rebuild, reduce, rewrite, size_value, walk
from turret.ir.index import Index, Size, Var, provably_nonnegative
from turret.ir.nest import FlatStore, Nest, always_inside, change_roots, change_store, flat_offset
from turret.ir.program import TensorDecl

Predicate = Callable[[Expr], bool]


class NeedsMask:
    """Whether evaluating an expression where it is masked off is unsafe: an out-of-bounds load, an error reported.

    ``unsafe`` tells of single nodes other than checks of indices; what is below ``settled`` ones is not looked at.
    """

    def __init__(self, unsafe: Predicate, settled: Predicate = lambda node: False) -> None:
        self.unsafe, self.settled = unsafe, settled
        self._found: dict[Expr, bool] = {}

    def __call__(self, expr: Expr) -> bool:
        found = self._found.get(expr)
        if found is None:
            found = not self.settled(expr) and (
                expr.op == "check_index" or self.unsafe(expr) or any(map(self, expr.children()))
            )
            self._found[expr] = found
        return found


def both(outer: Expr | None, condition: Expr, needs_mask: Predicate) -> Expr:
    """The condition of what is inside of two; the inner one is only evaluated where the outer holds, if it must be.

    ``needs_mask``: whether evaluating an expression where it is not wanted would be unsafe.
    """
    if outer is None:
        return condition
    if needs_mask(condition):
        return call("masked", outer, condition, constant(False, torch.bool))
    return call("logical_and", outer, condition)


def mask_hoisted(nest: Nest) -> Nest:
    """``nest``, whose loads are not flat yet, where nothing that a code generator moves ahead of a loop does harm.

    Where a loop turns out to be empty, what does not mention it is computed all the same: no check fails there, and
    no tensor is read that is empty as well.
    """
    if not any(_may_be_empty(v) for v in nest.loops) and not any(map(_may_be_empty, _reduced(nest))):
        return nest
    inner = frozenset(nest.inner)
    suspects = {name: decl for name, decl in nest.tensors.items() if any(map(_may_be_zero, decl.shape))}

    def masked(store: FlatStore) -> FlatStore:
        loops = nest.loops if store.variables & inner else nest.outer
        return change_store(store, _Guard(loops, suspects).change)

    return attrs.evolve(nest, stores=tuple(map(masked, nest.stores)))


def _reduced(nest: Nest) -> list[Var]:
    return [v for node in nest.reductions for v in node.payload.variables]


def _may_be_empty(variable: Var) -> bool:
    return _may_be_zero(variable.extent)


def _may_be_zero(extent: Size) -> bool:
    return not provably_nonnegative(extent - 1)


class _Guard:
    """Changes expressions inside of ``loops``; ``suspects``: the tensors that may have no elements."""

    def __init__(self, loops: Iterable[Var], suspects: Mapping[str, TensorDecl]) -> None:
        self._loops = tuple(loops)
        self._open = [v for v in self._loops if _may_be_empty(v)]
        self._suspects = suspects
        self._done: dict[Expr, Expr] = {}

    def change(self, expr: Expr) -> Expr:
        if not expr.reports and not any(self._unmentioned(node) for node in loads(expr)):
            return expr
        if expr not in self._done:
            self._done[expr] = self._changed(expr)
        return self._done[expr]

    def _changed(self, expr: Expr) -> Expr:
        inside = _Guard((*self._loops, *expr.payload.variables), self._suspects) if expr.op == "reduce" else self
        args = tuple(map(inside.change, expr.args))
        coords = tuple(coord.substitute({}, self.change) for coord in expr.coords)
        if expr.op == "check_index":
            args = (self._wanted(expr, args[0]), *args[1:])
        elif divides_by_zero(expr):
            args = (args[0], self._wanted(expr, args[1]))
        changed = rebuild(expr, args, coords)
        for extent in self._unmentioned(expr):
            changed = call("masked", _is_positive(extent), changed, constant(0, changed.dtype))
        return changed

    def _unmentioned(self, node: Expr) -> list[Size]:
        """Extents of what a load reads that may be 0 for all that the loops say which the load cannot leave.

        An offset does not mention a loop along a dimension of stride 0, whatever the coordinate.
        """
        decl = self._suspects.get(node.tensor) if node.op == "load" else None
        if decl is None:
            return []
        kept = [frozenset() if stride == 0 else c.variables for c, stride in zip(node.coords, decl.stride, strict=True)]
        if all(any(v in variables for variables in kept) for v in self._open):
            return []
        return [n for n, variables in zip(decl.shape, kept, strict=True) if not variables and _may_be_zero(n)]

    def _wanted(self, check: Expr, operand: Expr) -> Expr:
        """The operand that a check fails for: where some loop is empty, one that it lets through."""
        sizes = [v.extent for v in self._open if v not in check.variables]
        if not sizes:
            return operand
        some = functools.reduce(functools.partial(call, "logical_and"), map(_is_positive, sizes))
        neutral = constant(0 if check.op == "check_index" else 1, operand.dtype)
        return call("masked", some, operand, neutral)


def _is_positive(extent: Size) -> Expr:
    return call("gt", size_value(extent), constant(0, torch.int64))


def mask_operands(nest: Nest, reports: Predicate = lambda node: False) -> Nest:
    """``nest``, whose loads are not flat yet, with row reductions and scans that need no mask.

    ``reports``: nodes other than loads and checks of indices for which a kernel may report an error.
    """
    change = operand_guard(nest.roots, nest.inner, nest.tensors, reports)
    return nest if change is None else change_roots(nest, change)


def operand_guard(
    roots: Iterable[Expr],
    row: tuple[Var, ...],
    tensors: dict[str, TensorDecl],
    reports: Predicate = lambda node: False,
) -> Callable[[Expr], Expr] | None:
    """What changes each of the ``roots`` of one kernel so; None where nothing is to be changed."""
    roots = tuple(roots)
    if not _conditional(roots):
        return None
    return _OperandGuard(roots, row, tensors, reports).change


class _OperandGuard:
    def __init__(
        self, roots: tuple[Expr, ...], row: tuple[Var, ...], tensors: dict[str, TensorDecl], reports: Predicate
    ) -> None:
        def unsafe(node: Expr) -> bool:
            if node.op == "load":
                offset = flat_offset(node.tensor, node.coords, tensors)
                return not always_inside(offset, tensors[node.tensor])
            return reports(node)

        self.row, self._needs_mask = frozenset(row), NeedsMask(unsafe)
        self._done: dict[tuple[Expr, Expr | None], Expr] = {}
        self._computed = _unconditional(roots)

    def change(self, root: Expr) -> Expr:
        """A root with every such reduction and scan below it masked."""
        return self._under(None, root)

    def _under(self, mask: Expr | None, expr: Expr) -> Expr:
        """``expr``, wanted where ``mask`` holds (None: everywhere)."""
        if mask is not None and not self._needs_mask(expr):
            return expr
        key = expr, mask
        if key not in self._done:
            self._done[key] = self._guarded(mask, expr)
        return self._done[key]

    def _guarded(self, mask: Expr | None, expr: Expr) -> Expr:
        if expr.op == "masked":
            condition = self._under(mask, expr.args[0])
            inside = self._under(both(mask, condition, self._needs_mask), expr.args[1])
            return call("masked", condition, inside, expr.args[2])
        if mask is not None and self._is_collective(expr, mask):
            wanted = self._anywhere(mask, _bound(expr))
            if wanted is None or expr in self._computed:
                return self._under(None, expr)
            args = tuple(self._operand(wanted, arg) for arg in expr.args)
            return Expr.make(expr.op, args, expr.dtype, expr.payload)
        args = tuple(self._under(mask, arg) for arg in expr.args)
        coords = tuple(coord.substitute({}, functools.partial(self._under, mask)) for coord in expr.coords)
        same = all(a is b for a, b in zip((*args, *coords), (*expr.args, *expr.coords), strict=True))
        return expr if same else rebuild(expr, args, coords)

    def _is_collective(self, expr: Expr, mask: Expr) -> bool:
        """Whether a node's operands cannot each be wanted under the condition that the node is."""
        if expr.op == "scan":
            return True
        if expr.op != "reduce":
            return False
        bound = frozenset(expr.payload.variables)
        return bound == self.row or bool(bound & mask.variables)

    def _operand(self, wanted: Expr, arg: Expr) -> Expr:
        if not self._needs_mask(arg):
            return arg
        return call("masked", wanted, self._under(wanted, arg), constant(0, arg.dtype))

    def _anywhere(self, mask: Expr, variables: tuple[Var, ...]) -> Expr | None:
        """Where ``mask`` holds at some point of the loops over ``variables``; None for everywhere."""
        bound = frozenset(variables)
        parts = _conjuncts(mask)
        wanted = [part for part in parts if not part.variables & bound]
        varying = [part for part in parts if part.variables & bound]
        if varying:
            condition = functools.reduce(functools.partial(call, "logical_and"), varying)
            if not _holds_somewhere(condition, variables):
                wanted.append(reduce("any", variables, condition))
        return functools.reduce(functools.partial(call, "logical_and"), wanted) if wanted else None


def _bound(expr: Expr) -> tuple[Var, ...]:
    return expr.payload.variables if expr.op == "reduce" else (expr.payload[1],)


def _conditional(roots: tuple[Expr, ...]) -> bool:
    """Whether a reduction or a scan is inside of a condition."""
    holders: set[Expr] = set()
    for node in walk(*roots):
        if node.op in ("reduce", "scan") or not holders.isdisjoint(node.children()):
            holders.add(node)
        if node.op == "masked" and node.args[1] in holders:
            return True
    return False


def _unconditional(roots: tuple[Expr, ...]) -> set[Expr]:
    """The nodes that are computed at every point anyway."""
    found: set[Expr] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [node.args[0]] if node.op == "masked" else node.children()
    return found


def _conjuncts(condition: Expr) -> list[Expr]:
    if condition.op != "logical_and":
        return [condition]
    return [part for arg in condition.args for part in _conjuncts(arg)]


def _holds_somewhere(condition: Expr, variables: tuple[Var, ...]) -> bool:
    """Whether a condition is known to hold at the first, the last or the middle point of some loops."""

    def middle(extent: Size) -> Size:
        return extent // 2 if isinstance(extent, int) else 0

    for place in (lambda extent: 0, lambda extent: extent - 1, middle):
        there = rewrite(condition, {v: Index.constant(place(v.extent)) for v in variables})
        if there.op == "const" and there.payload:
            return True
    return False
