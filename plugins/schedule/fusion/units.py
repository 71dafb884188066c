"""Units: the statements of a program as the scheduler sees them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import attrs

from turret.errors import UnsupportedError
from turret.ir import (
    OPS,
    Definition,
    Expr,
    LoopProgram,
    Scatter,
    Size,
    Statement,
    StridedView,
    TensorDecl,
    Var,
    has_matrix_product,
    product,
    used,
    walk,
)
from turret.ir.expr import loads


@attrs.define(eq=False)
class Unit:
    """One statement, numbered in program order.

    For a definition: ``value`` after inlining; ``rows`` are the variables that its reductions bind (or the one
    that a scan runs along); ``iterations`` counts points of its loops, reductions included (a size).  For a scatter:
    ``fill`` defines its initial values where they depend on no tensor (zeros), so that they need no memory.
    ``is_matrix_product``: its row is the depth of a product of two matrices, whose elements are each needed many times.
    """

    number: int
    statement: Statement
    value: Expr | None = None
    rows: tuple[Var, ...] = ()
    scans: bool = False
    fill: Definition | None = None
    is_matrix_product: bool = False

    @property
    def is_loop(self) -> bool:
        return isinstance(self.statement, Definition)

    @property
    def loop(self) -> Definition | Scatter:
        """The statement, where it is made of loops."""
        assert isinstance(self.statement, Definition | Scatter), self.statement
        return self.statement

    @property
    def expr(self) -> Expr:
        """The value of a definition."""
        assert self.value is not None, self.statement
        return self.value

    @expr.setter
    def expr(self, value: Expr) -> None:
        self.value = value

    @property
    def tensor(self) -> TensorDecl:
        """What the statement makes; those of calls may make several."""
        assert isinstance(self.statement, Definition | Scatter | StridedView), self.statement
        return self.statement.tensor

    @property
    def variables(self) -> tuple[Var, ...]:
        return self.loop.variables

    @property
    def iterations(self) -> Size:
        extents = [v.extent for v in self.variables]
        return product(extents if self.scans else [*extents, *(v.extent for v in self.rows)])

    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that the statement needs."""
        if self.value is not None:
            return tuple(dict.fromkeys(node.tensor for node in loads(self.expr)))
        if self.fill is None:
            return used(self.statement)
        # The values that are scattered may come from the very tensor that is scattered into.
        assert isinstance(self.statement, Scatter)
        itself = self.tensor.name
        return tuple(name for name in used(attrs.evolve(self.statement, initial=itself)) if name != itself)


def row_variables(expr: Expr) -> tuple[tuple[Var, ...], bool]:
    """Variables that reductions (or a scan: then True) of an expression run along; empty for pointwise.

    All reductions of one definition must bind the same variables, and not nest with a scan.
    """
    rows: tuple[Var, ...] = ()
    scans = False
    for node in walk(expr):
        if node.op == "reduce":
            found, scan = node.payload.variables, False
        elif node.op == "scan":
            found, scan = (node.payload[1],), True
        else:
            continue
        if rows and (found, scan) != (rows, scans):
            raise UnsupportedError(f"one definition reduces over {rows} and over {found}")
        rows, scans = found, scan
    return rows, scans


def units_of(program: LoopProgram) -> list[Unit]:
    """All statements as units, in program order."""
    units = []
    fills: dict[str, Definition] = {}
    for number, statement in enumerate(program.statements):
        if isinstance(statement, Definition):
            rows, scans = row_variables(statement.expr)
            product_ = bool(rows) and has_matrix_product(statement.expr)
            units.append(Unit(number, statement, statement.expr, rows, scans, is_matrix_product=product_))
            if not rows and not loads(statement.expr):
                fills[statement.tensor.name] = statement
        elif isinstance(statement, Scatter):
            units.append(Unit(number, statement, fill=fills.get(statement.initial)))
        else:
            units.append(Unit(number, statement))
    return units


@functools.lru_cache(maxsize=16384)
def expression_size(expr: Expr) -> int:
    """Number of distinct nodes."""
    return sum(1 for _ in walk(expr))


def is_expensive(node: Expr) -> bool:
    """Whether one op costs several times an addition; values made with it are not computed again and again."""
    return node.op == "random" or (node.op in OPS and OPS[node.op].cost != "cheap")


@functools.lru_cache(maxsize=16384)
def is_cheap(expr: Expr) -> bool:
    """True where recomputing a value costs about as little as loading it: few simple ops."""
    return work(expr) <= 4


_WHOLE = ("reduce", "scan", "part", "check_index", "group_of")
"""Nodes that stand for more than one operation, or that report an error."""


@functools.lru_cache(maxsize=16384)
def work(expr: Expr) -> float:
    """About how many additions computing one element costs; infinite with a reduction or a check inside.

    Scalars inside cost nothing: a kernel computes them once.
    """
    total = 0.0
    for node in walk(expr):
        if node.op in _WHOLE:
            return math.inf
        if expr.variables and not node.variables:
            continue
        total += 8 if is_expensive(node) else node.op not in ("const", "load", "index", "size", "cast")
    return total


def unread(units: Sequence[Unit]) -> set[str]:
    """Tensors of definitions that no unit reads; a kernel computes one only if it is written to memory."""
    read = {name for unit in units for name in unit.reads()}
    return {unit.tensor.name for unit in units if unit.is_loop} - read
