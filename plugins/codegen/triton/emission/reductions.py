"""Reductions and scans along the row: what a block of it gives, and blocks combined."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from turret.graph.scalar_ops import neutral_value
from turret.ir.expr import Expr, loads
from turret.ir.index import Var
from turret.ir.nest import has_exact_mean
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.operators import combine_function, combine_text
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.dtypes import (
    accumulator,
    from_accumulator,
    literal,
    to_accumulator,
    triton_type,
)
from turret.plugins.codegen.triton.tiles.specialization import is_multiple
from turret.plugins.codegen.triton.tiles.tiling import VECTOR

_BUILT_IN = {"sum": "tl.sum", "max": "tl.max", "any": "tl.max", "min": "tl.min", "all": "tl.min"}
"""Triton's own reductions, for accumulators without NaN."""


class RowWriter:
    """Writes reductions and scans along the row of one tiling: whole ones where the row lies in one block."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.tiling = emitter, emitter.tiling
        row = self.tiling.row
        assert row is not None  # there are reductions where a nest has rows alone
        self.row = row
        self.axis = len(self.tiling.dimensions) - 1
        self.outer = frozenset(tile.variable for tile in self.tiling.dimensions[:-1])
        emitter.row_writer, emitter.scan_writer = self.reduction, self.scan

    # ------------------------------------------------------------ blocks

    def each(self, scope: Scope, write: Callable[[Scope], str]) -> list[str]:
        """What is written for each part of the row, or for all of it where it has none."""
        if not self.emitter.parts:
            return [write(scope)]
        found = []
        for part in self.emitter.parts:
            with self.emitter.within(part):
                found.append(write(part))
        return found

    @property
    def full(self) -> frozenset[Var]:
        return frozenset(tile.variable for tile in self.tiling.dimensions)

    def collapsed(self, function: str, value: str) -> str:
        """Call of a built-in reduction of a block along the row."""
        return f"{function}({value}, {self.axis}{', keep_dims=True' if self.axis else ''})"

    def collapsed_by(self, function: str, *values: str) -> str:
        """A reduction of one or more blocks along the row by a combining function of the prelude."""
        operand = values[0] if len(values) == 1 else f"({', '.join(values)})"
        return f"tl.reduce({operand}, {self.axis}, {function}{', keep_dims=True' if self.axis else ''})"

    def total(self, kind: str, dtype: torch.dtype, value: str) -> str:
        """The reduction of a block of accumulators along the row."""
        function = _BUILT_IN.get(kind)
        if function is None or (dtype.is_floating_point and kind in ("min", "max")):
            return self.collapsed_by(combine_function(kind, dtype.is_floating_point), value)
        return self.collapsed(function, value)

    def element(self, expr: Expr, dtype: torch.dtype, scope: Scope) -> str:
        """An operand of a row reduction, as an accumulator that fills the block."""
        value = self.emitter.value(expr, scope)
        text = to_accumulator(value, expr.dtype, dtype)
        return self.emitter.spread(text, self.emitter.span(expr), self.full)

    def inside(self, value: str, neutral: str, scope: Scope) -> str:
        """``value`` where the row has an element, else ``neutral``."""
        if not self.emitter.needs_mask(self.row, scope):
            return value
        return f"tl.where({self.emitter.tile_mask(self.row, scope)}, {value}, {neutral})"

    def begins_at_vectors(self, *roots: Expr) -> bool:
        """Whether rows, of all that ``roots`` load along them, are sure to begin where whole vectors of elements do."""
        if self.tiling.edges is not None:
            return self.emitter.row_part is None
        divisible = self.emitter.divisible
        for each in loads(*roots):
            (offset,), unit = each.coords, VECTOR // max(2, each.dtype.itemsize)
            steps = [step for atom, step in offset.terms if atom not in self.emitter.tiles or step != 1]
            along = self.row.variable in each.variables
            if along and not all(is_multiple(step, unit, divisible) for step in (*steps, offset.const)):
                return False
        return True

    # ------------------------------------------------------------ one block

    def reduction(self, expr: Expr, scope: Scope) -> str:
        """A row reduction, or a part of one, where the row lies in one block."""
        node = expr.args[0] if expr.op == "part" else expr
        if not self.tiling.persistent:
            raise AssertionError(f"row reduction {node} is used before its pass")
        if node.payload.kind == "welford":
            return self._moments(node, scope, expr.payload)
        if node.payload.kind in ("argmin", "argmax"):
            best, number = self.candidates(node, scope)
            found = self.emitter.fresh("best"), self.emitter.fresh("at")
            scope.line(f"{found[0]}, {found[1]} = {self.collapsed_by(f'{node.payload.kind}_of', best, number)}")
            return f"{found[1]}.to(tl.int64)"
        dtype = accumulator(node.payload.kind, node.dtype)
        kind, neutral = node.payload.kind, literal(neutral_value(node.payload.kind, dtype), dtype)

        def total(inside: Scope) -> str:
            return self.total(kind, dtype, self.inside(self.element(node.args[0], dtype, inside), neutral, inside))

        return from_accumulator(self.combined(kind, dtype, self.each(scope, total)), dtype, node.dtype)

    def combined(self, kind: str, dtype: torch.dtype, totals: list[str]) -> str:
        """The reduction of the totals of parts."""
        text = functools.reduce(lambda a, b: combine_text(kind, dtype.is_floating_point, a, b), totals)
        return text if len(totals) == 1 else f"({text})"

    def _moments(self, node: Expr, scope: Scope, which: str) -> str:
        """Mean, or sum of squared differences from it: sums, without divisions by element.

        Those of the differences correct both, as in ``turret.ir.nest.plain_moment``.
        """
        if (which, node) not in scope.names:
            emitter, dtype = self.emitter, node.dtype
            mean, squares = emitter.fresh("mean"), emitter.fresh("squares")

            def total(inside: Scope) -> str:
                value = self.element(node.args[0], dtype, inside)
                return self.collapsed("tl.sum", self.inside(value, "0.0", inside))

            def distance(inside: Scope) -> str:
                apart, value = emitter.fresh("d"), self.element(node.args[0], dtype, inside)
                inside.line(f"{apart} = {self.inside(f'{value} - {mean}', '0.0', inside)}")
                return apart

            scope.line(f"{mean} = {self.over_row(self.combined('sum', dtype, self.each(scope, total)), dtype)}")
            apart = self.each(scope, distance)
            if has_exact_mean(node):
                totals = [self.collapsed("tl.sum", f"{d} * {d}") for d in apart]
                scope.line(f"{squares} = {self.combined('sum', dtype, totals)}")
            else:
                mean, squares = self.corrected(mean, [(d, f"{d} * {d}") for d in apart], dtype, scope)
            scope.names["mean", node], scope.names["m2", node] = mean, squares
        return scope.names[which, node]

    def corrected(self, near: str, apart: list[tuple[str, str]], dtype: torch.dtype, scope: Scope) -> tuple[str, str]:
        """Mean and sum of squares by the differences from ``near`` and their squares, of each part of the row.

        Both are summed at once, which is one exchange between the warps.
        """
        found = []
        for each in apart:
            found.append((self.emitter.fresh("rest"), self.emitter.fresh("squares")))
            scope.line(f"{', '.join(found[-1])} = {self.collapsed_by('sums_of', *each)}")
        off, mean, m2 = map(self.emitter.fresh, ("off", "mean", "m2"))
        rest, squares = found[0]
        for more in found[1:]:
            scope.line(f"{rest}, {squares} = sums_of({rest}, {squares}, {', '.join(more)})")
        scope.line(f"{off} = {self.over_row(rest, dtype)}")
        scope.line(f"{mean} = corrected_mean({near}, {off})")
        scope.line(f"{m2} = corrected_squares({squares}, {rest}, {off})")
        return mean, m2

    def over_row(self, total: str, dtype: torch.dtype) -> str:
        """A sum over the number of the row's elements."""
        count = self.emitter.count((self.row.variable,), triton_type(dtype).register)
        return f"tl.div_rn({total}, {count})" if dtype == torch.float32 else f"{total} / {count}"

    def candidates(self, node: Expr, scope: Scope) -> tuple[str, str]:
        """Values and numbers of an arg reduction, with those beyond the row's end never the best."""
        value, number = node.args
        dtype, kind = accumulator("max", value.dtype), node.payload.kind
        worst = literal(neutral_value(kind, dtype), dtype)
        best = self.inside(self.element(value, dtype, scope), worst, scope)
        numbers = number_type(number)
        at = self.emitter.spread(
            self.emitter.value(number, scope) + f".to({triton_type(numbers).register})",
            self.emitter.span(number),
            self.full,
        )
        return best, self.inside(at, str(torch.iinfo(numbers).max), scope)

    def scan(self, expr: Expr, scope: Scope) -> str:
        """A running combination along the row; in a loop, a carry is handed from block to block."""
        kind, _ = expr.payload
        dtype = accumulator(kind, expr.dtype)
        is_float = dtype.is_floating_point
        value = self.element(expr.args[0], dtype, scope)
        neutral = literal(neutral_value(kind, dtype), dtype)
        function = combine_function(kind, is_float)
        emitter = self.emitter
        if self.tiling.persistent:
            return self._rounded(f"tl.associative_scan({value}, {self.axis}, {function})", dtype, expr.dtype)
        carry = emitter.fresh("carry")
        emitter.base.line(f"{carry} = {self.block(self.outer, neutral, dtype)}")
        masked = emitter.fresh("v")
        scope.line(f"{masked} = {self.inside(value, neutral, scope)}")
        block = f"tl.associative_scan({masked}, {self.axis}, {function})"
        running = emitter.fresh("running")
        scope.line(f"{running} = {combine_text(kind, is_float, carry, block)}")
        scope.line(f"{carry} = {combine_text(kind, is_float, carry, self.total(kind, dtype, masked))}")
        return self._rounded(running, dtype, expr.dtype)

    @staticmethod
    def _rounded(text: str, source: torch.dtype, target: torch.dtype) -> str:
        return triton_type(target).round(from_accumulator(text, source, target))

    def block(self, variables: frozenset[Var], value: str, dtype: torch.dtype) -> str:
        """A block full of one value (a scalar where it varies along nothing and there is one tile dimension)."""
        shape = self.emitter.shape(variables) if self.axis or variables else "[]"
        return f"tl.full({shape}, {value}, {triton_type(dtype).register})"


def number_type(number: Expr) -> torch.dtype:
    """The dtype in which an arg reduction carries its numbers: int32 where they are known to fit."""
    low, high = number.payload.bounds() if number.op == "index" else (None, None)
    fits = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < (1 << 31) - 1
    return torch.int32 if fits else torch.int64
