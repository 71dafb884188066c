"""Reductions and scans along the row: in one block, or in passes of a loop; and short loops inside a tile."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from turret.errors import UnsupportedError
from turret.graph.scalar_ops import neutral_value
from turret.ir.emit.emitter import Mask
from turret.ir.expr import Expr, walk
from turret.ir.index import Var
from turret.ir.nest import FlatStore
from turret.plugins.codegen.triton.emission.emitter import Emitter
from turret.plugins.codegen.triton.emission.operators import combine_function, combine_text
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles import softmax
from turret.plugins.codegen.triton.tiles.dtypes import accumulator, literal, triton_type

_BUILT_IN = {"sum": "tl.sum", "max": "tl.max", "any": "tl.max", "min": "tl.min", "all": "tl.min"}
"""Triton's own reductions, for accumulators without NaN."""


def to_accumulator(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """A register value of ``source`` as an accumulator."""
    have, want = triton_type(source).register, triton_type(target).register
    return value if have == want else f"{value}.to({want})"


def from_accumulator(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """An accumulator as a register value of ``target``."""
    have, want = triton_type(source).register, triton_type(target).register
    if target == torch.bool:
        return f"({value} != 0)"
    return value if have == want else f"{value}.to({want})"


class RowWriter:
    """Writes reductions and scans along the row of one tiling; ``run`` writes the whole kernel's body."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.tiling = emitter, emitter.tiling
        self.row = self.tiling.row
        self.axis = len(self.tiling.tiles) - 1
        self.outer = frozenset(tile.variable for tile in self.tiling.tiles[:-1])
        emitter.row_writer, emitter.scan_writer = self.reduction, self.scan

    # ------------------------------------------------------------ blocks

    @property
    def full(self) -> frozenset[Var]:
        return frozenset(tile.variable for tile in self.tiling.tiles)

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
        if not self.tiling.needs_mask(self.row):
            return value
        return f"tl.where({self.emitter.tile_mask(self.row, scope)}, {value}, {neutral})"

    # ------------------------------------------------------------ one block

    def reduction(self, expr: Expr, scope: Scope) -> str:
        """A row reduction, or a part of one, where the row lies in one block."""
        node = expr.args[0] if expr.op == "part" else expr
        if not self.tiling.persistent:
            raise AssertionError(f"row reduction {node} is used before its pass")
        if node.payload.kind == "welford":
            return self._moments(node, scope, expr.payload)
        if node.payload.kind in ("argmin", "argmax"):
            best, number = self._candidates(node, scope)
            found = self.emitter.fresh("best"), self.emitter.fresh("at")
            scope.line(f"{found[0]}, {found[1]} = {self.collapsed_by(f'{node.payload.kind}_of', best, number)}")
            return f"{found[1]}.to(tl.int64)"
        dtype = accumulator(node.payload.kind, node.dtype)
        value = self.element(node.args[0], dtype, scope)
        value = self.inside(value, literal(neutral_value(node.payload.kind, dtype), dtype), scope)
        return from_accumulator(self.total(node.payload.kind, dtype, value), dtype, node.dtype)

    def _moments(self, node: Expr, scope: Scope, which: str) -> str:
        """Mean, or sum of squared differences from it: two reductions, exact and without divisions by element."""
        emitter, dtype = self.emitter, node.dtype
        value = self.element(node.args[0], dtype, scope)
        key = ("mean", node)
        if key not in scope.names:
            mean = f"{self.collapsed('tl.sum', self.inside(value, '0.0', scope))}"
            count = emitter.count((self.row.variable,), triton_type(dtype).register)
            divided = f"tl.div_rn({mean}, {count})" if dtype == torch.float32 else f"{mean} / {count}"
            emitter.named(scope, key, "mean", divided)
        if which == "mean":
            return scope.names[key]
        centred = emitter.named(
            scope, ("centred", node), "d", self.inside(f"{value} - {scope.names[key]}", "0.0", scope)
        )
        return self.collapsed("tl.sum", f"{centred} * {centred}")

    def _candidates(self, node: Expr, scope: Scope) -> tuple[str, str]:
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

    # ------------------------------------------------------------ passes

    def open_pass(self) -> Scope:
        """A loop over the blocks of the row, with the row's variable bound in it."""
        emitter, tile = self.emitter, self.row
        offset = emitter.fresh("roffset")
        scope = Scope(emitter.base, f"for {offset} in range(0, {emitter.size(tile.extent)}, {tile.block}):")
        scope.line(f"r = {offset} + rbase")
        scope.variables[tile.variable] = "r"
        return scope

    def passes(self, along: list[FlatStore], store: Callable[[list[FlatStore], Scope], None]) -> None:
        """Write every pass over the row: those that reduce, and the stores ``along`` the row.

        Where there is one pass and what is stored needs none of its results, the stores go along with it.  With more
        passes they come last: they may take over memory that a later pass reads.
        """
        facts = self.emitter.facts
        found = [n for n in walk(*(root for s in self.tiling.stores for root in s.roots)) if facts.is_row(n)]
        facts.together |= softmax.softmax_sums(found, facts.is_row)
        levels = {node: facts.level(node) for node in found}
        count = max(levels.values(), default=0)
        at_once = count == 1 and not any(facts.level(root) for s in along for root in s.roots)
        for level in range(1, count + 1):
            scope = self.open_pass()
            ends = self._pass([node for node in found if levels[node] == level], scope)
            if at_once:
                store(along, scope)
            scope.close()
            for carried in ends:
                carried.finish(self.emitter.base)
            self.emitter.base.level = level
        if along and not at_once:
            scope = self.open_pass()
            store(along, scope)
            scope.close()

    def _pass(self, nodes: list[Expr], scope: Scope) -> list[_Carried]:
        together = self.emitter.facts.together
        sums = {together[node]: node for node in nodes if node in together}
        ends = []
        for node in nodes:
            if node in together:
                continue
            carried = _Carried(self, node, sums.get(node))
            carried.step(scope)
            ends.append(carried)
        return ends


@attrs.define(init=False)
class _Carried:
    """The accumulators of one reduction (with its sum, for a maximum that starts an online softmax) in a pass."""

    writer: RowWriter
    node: Expr
    softmax_sum: Expr | None
    names: list[str]

    def __init__(self, writer: RowWriter, node: Expr, softmax_sum: Expr | None) -> None:
        self.writer, self.node, self.softmax_sum = writer, node, softmax_sum
        self.names = []

    @property
    def kind(self) -> str:
        return self.node.payload.kind

    def _start(self, stem: str, value: str, dtype: torch.dtype, shape: str | None = None) -> str:
        name = self.writer.emitter.fresh(stem)
        shape = shape or self.writer.emitter.shape(self.writer.full)
        self.writer.emitter.base.line(f"{name} = tl.full({shape}, {value}, {triton_type(dtype).register})")
        self.names.append(name)
        return name

    def step(self, scope: Scope) -> None:
        """Take in one block."""
        if self.softmax_sum is not None:
            shape, dtype = softmax.lane_shape(self.writer, self.node), self.node.dtype
            best = self._start("max", softmax.NOTHING, dtype, shape)
            total = self._start("sum", "0.0", dtype, shape)
            softmax.write_step(self.writer, self.node, best, total, scope)
        elif self.kind == "welford":
            self._welford_step(scope)
        elif self.kind in ("argmin", "argmax"):
            self._arg_step(scope)
        else:
            self._plain_step(scope)

    def finish(self, scope: Scope) -> None:
        """Reduce the accumulators, and name the results."""
        emitter, writer, node = self.writer.emitter, self.writer, self.node
        if self.softmax_sum is not None:
            best, total = self.names
            best, total = softmax.write_end(writer, best, total, scope)
            scope.names[node, None], scope.names[self.softmax_sum, None] = best, total
        elif self.kind == "welford":
            self._welford_end(scope)
        elif self.kind in ("argmin", "argmax"):
            results = emitter.fresh("best"), emitter.fresh("at")
            scope.line(f"{', '.join(results)} = {writer.collapsed_by(f'{self.kind}_of', *self.names)}")
            scope.line(f"{results[1]} = {results[1]}.to(tl.int64)")
            scope.names[node, None] = results[1]
        else:
            dtype = accumulator(self.kind, node.dtype)
            text = from_accumulator(writer.total(self.kind, dtype, self.names[0]), dtype, node.dtype)
            emitter.named(scope, (node, None), "t", text)

    def _plain_step(self, scope: Scope) -> None:
        dtype = accumulator(self.kind, self.node.dtype)
        neutral = literal(neutral_value(self.kind, dtype), dtype)
        name = self._start("acc", neutral, dtype)
        value = self.writer.element(self.node.args[0], dtype, scope)
        value = self.writer.inside(value, neutral, scope)
        scope.line(f"{name} = {combine_text(self.kind, dtype.is_floating_point, name, value)}")

    def _arg_step(self, scope: Scope) -> None:
        value, number = self.node.args
        dtype = accumulator("max", value.dtype)
        best = self._start("best", literal(neutral_value(self.kind, dtype), dtype), dtype)
        numbers = number_type(number)
        at = self._start("at", str(torch.iinfo(numbers).max), numbers)
        candidate, position = self.writer._candidates(self.node, scope)
        scope.line(f"{best}, {at} = {self.kind}_of({best}, {at}, {candidate}, {position})")

    def _welford_step(self, scope: Scope) -> None:
        emitter, dtype = self.writer.emitter, self.node.dtype
        mean, m2 = self._start("mean", "0.0", dtype), self._start("m2", "0.0", dtype)
        seen = emitter.fresh("seen")
        emitter.base.line(f"{seen} = tl.full([], 0.0, {triton_type(dtype).register})")
        value = self.writer.element(self.node.args[0], dtype, scope)
        delta, new, share = emitter.fresh("delta"), emitter.fresh("new"), emitter.fresh("share")
        scope.line(f"{seen} = {seen} + 1.0")
        scope.line(f"{share} = 1.0 / {seen}")
        scope.line(f"{delta} = {value} - {mean}")
        scope.line(f"{new} = {mean} + {delta} * {share}")
        scope.line(f"{m2} = {self.writer.inside(f'{m2} + {delta} * ({value} - {new})', m2, scope)}")
        scope.line(f"{mean} = {self.writer.inside(new, mean, scope)}")

    def _welford_end(self, scope: Scope) -> None:
        """The moments of all lanes from those of each: two sums, where merging two by two divides at each step."""
        emitter, writer, node = self.writer.emitter, self.writer, self.node
        (lane_mean, lane_m2), count = self.names, self._lane_count(scope)
        whole = emitter.count((writer.row.variable,), triton_type(node.dtype).register)
        total = writer.collapsed("tl.sum", f"{lane_mean} * {count}")
        mean = emitter.fresh("mean")
        scope.line(f"{mean} = {total} / {whole}")
        off = emitter.fresh("off")
        scope.line(f"{off} = {lane_mean} - {mean}")
        m2 = emitter.fresh("m2")
        scope.line(f"{m2} = {writer.collapsed('tl.sum', f'{lane_m2} + {count} * {off} * {off}')}")
        for which, name in (("mean", mean), ("m2", m2)):
            scope.names[Expr.make("part", (node,), node.dtype, which), None] = name

    def _lane_count(self, scope: Scope) -> str:
        """How many elements each lane of the block has seen."""
        emitter, tile = self.writer.emitter, self.writer.row
        register = triton_type(self.node.dtype).register
        count = f"(({emitter.size(tile.extent)} - rbase + ({tile.block} - 1)) // {tile.block})"
        name = emitter.named(scope, ("lanes", register), "lanes", f"tl.maximum({count}, 0).to({register})")
        return emitter.spread(name, frozenset((tile.variable,)), self.writer.full)


def number_type(number: Expr) -> torch.dtype:
    """The dtype in which an arg reduction carries its numbers: int32 where they are known to fit."""
    low, high = number.payload.bounds() if number.op == "index" else (None, None)
    fits = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < (1 << 31) - 1
    return torch.int32 if fits else torch.int64


def serial_reduction(emitter: Emitter, expr: Expr, scope: Scope, mask: Mask) -> str:
    """A reduction of its own, not along the row: a loop inside the tile."""
    kind, variables = expr.payload.kind, expr.payload.variables
    if kind in ("welford", "argmin", "argmax"):
        raise UnsupportedError(f"{kind} over {', '.join(map(str, variables))}, which is not the row of the kernel")
    dtype = accumulator(kind, expr.dtype)
    neutral = literal(neutral_value(kind, dtype), dtype)
    varying = emitter.span(expr, mask) & emitter.tiles.keys()
    total = emitter.fresh("q")
    inside, opened = scope, []
    for variable in variables:
        step, name = emitter.fresh("step"), emitter.fresh("k")
        inside = Scope(inside, f"for {step} in range(0, {emitter.size(variable.extent)}):")
        inside.line(f"{name} = tl.full([], 0, {emitter.index_type}) + {step}")
        inside.variables[variable] = name
        opened.append(inside)
    value = to_accumulator(emitter.value(expr.args[0], inside, mask), expr.dtype, dtype)
    inside.line(f"{total} = {combine_text(kind, dtype.is_floating_point, total, value)}")
    shape = emitter.shape(varying) if varying else "[]"
    scope.line(f"{total} = tl.full({shape}, {neutral}, {triton_type(dtype).register})")
    for loop in reversed(opened):
        loop.close()
    return triton_type(expr.dtype).round(from_accumulator(total, dtype, expr.dtype))
