"""Passes over a row that is walked in a loop: accumulators, what each block adds to them, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import torch

from turret.graph.scalar_ops import neutral_value
from turret.ir.expr import Expr, walk
from turret.ir.index import Var
from turret.ir.nest import FlatStore
from turret.plugins.codegen.triton.emission import online_softmax
from turret.plugins.codegen.triton.emission.edges import last_vector, open_vectors
from turret.plugins.codegen.triton.emission.operators import combine_text
from turret.plugins.codegen.triton.emission.reductions import RowWriter, number_type
from turret.plugins.codegen.triton.emission.scopes import Scope
from turret.plugins.codegen.triton.tiles.dtypes import accumulator, from_accumulator, literal, triton_type
from turret.plugins.codegen.triton.tiles.softmax import softmax_sums
from turret.plugins.codegen.triton.tiles.tiling import FEW_IN_PART


def write_passes(writer: RowWriter, along: list[FlatStore], store: Callable[[list[FlatStore], Scope], None]) -> None:
    """Write every pass over the row: those that reduce, and the stores ``along`` the row.

    Where there is one pass and what is stored needs none of its results, the stores go along with it.  With more
    passes they come last: they may take over memory that a later pass reads.
    """
    facts = writer.emitter.facts
    found = [n for n in walk(*(root for s in writer.tiling.stores for root in s.roots)) if facts.is_row(n)]
    facts.together |= softmax_sums(found, facts.is_row)
    levels = {node: facts.level(node) for node in found}
    count = max(levels.values(), default=0)
    at_once = count == 1 and not any(facts.level(root) for s in along for root in s.roots)
    for level in range(1, count + 1):
        nodes = [node for node in found if levels[node] == level]
        _write_pass(writer, nodes, lambda scope: store(along, scope) if at_once else None)
        for scope in filter(None, (writer.emitter.base, writer.emitter.edges)):
            scope.level = level
    if along and not at_once:
        for scope in _blocks(writer):
            store(along, scope)
        _in_edges(writer, lambda scope: store(along, scope))


def _in_edges(writer: RowWriter, write: Callable[[Scope], None]) -> None:
    """Write something for the elements at the row's ends, if they come by themselves."""
    edges = writer.emitter.edges
    if edges is not None:
        with writer.emitter.within(edges):
            write(edges)


def _blocks(writer: RowWriter) -> Iterator[Scope]:
    """The loop over the blocks of the row, with the row's variable bound in it: what is in it is written when it comes.

    Of a row of symbolic length the last block, which may reach beyond the end, comes by itself: the others need no
    mask, which would part what one instruction loads.  Where rows begin anywhere, each element is a load anyway: the
    compiler then has few of those without a mask under way at a time (on sm_90 2 of 32), and all of those with one.
    Rows with edges are walked in blocks of their vectors.
    """
    emitter, tile, edges = writer.emitter, writer.row, writer.tiling.edges
    offset = emitter.fresh("roffset")
    if edges is not None:
        least, end = last_vector(tile, edges, emitter)
        whole = emitter.named(emitter.base, "whole blocks", "rwhole", f"({least}) // {tile.block} * {tile.block}")
        end = emitter.named(emitter.base, "last vector", "rlast", end)
        header = f"for {offset} in range(0, {whole}, {tile.block}):"
        yield from _opened(writer, header, offset, (tile.variable,))
        yield from _opened(writer, f"if {whole} < {end}:", whole)
        return
    end = emitter.end(tile)
    parted = _ends_in_part(writer) and not writer.tiling.nest.scan_variables
    parted = parted and writer.begins_at_vectors(*(root for store in writer.tiling.stores for root in store.roots))
    if not parted:
        yield from _opened(writer, f"for {offset} in range(0, {end}, {tile.block}):", offset)
        return
    whole = emitter.named(emitter.base, "whole blocks", "rwhole", f"{end} // {tile.block} * {tile.block}")
    bounds = f"0, {whole}, {tile.block}"
    # One row a program: two blocks of it are under way at a time.
    lone = len(writer.tiling.tiles) == 1
    header = f"for {offset} in {f'tl.range({bounds}, loop_unroll_factor=2)' if lone else f'range({bounds})'}:"
    yield from _opened(writer, header, offset, (tile.variable,))
    yield from _opened(writer, f"if {whole} < {end}:", whole)


def _ends_in_part(writer: RowWriter) -> bool:
    """Whether the last block of a row should come by itself: its length is known at run time alone, or there are many
    blocks of columns."""
    extent, tiling = writer.row.extent, writer.tiling
    if not isinstance(extent, int) or tiling.ends_anywhere:
        return True
    block = dict(tiling.configs[0].constants)[writer.row.block]
    return not tiling.along_row and extent % block != 0 and extent >= FEW_IN_PART * block


def _opened(writer: RowWriter, header: str, offset: str, whole: tuple[Var, ...] = ()) -> Iterator[Scope]:
    scope = Scope(writer.emitter.base, header, whole)
    if writer.tiling.edges is None:
        scope.line(f"r = {offset} + rbase")
        scope.variables[writer.row.variable] = "r"
    else:
        scope.line(f"rlane = {offset} + rbase")
        open_vectors(scope, writer.row, "rlane", masked=not whole)
    yield scope
    scope.close()


def _write_pass(writer: RowWriter, nodes: list[Expr], beside: Callable[[Scope], None]) -> None:
    """A pass that reduces, with what is written ``beside`` in each of its blocks, and its results."""
    ends = _carried(writer, nodes)
    for scope in _blocks(writer):
        for carried in ends:
            carried.step(scope)
        beside(scope)

    def step(scope: Scope) -> None:
        for carried in ends:
            carried.step_at_edges(scope)
        beside(scope)

    _in_edges(writer, step)
    for carried in ends:
        carried.finish(writer.emitter.base)


def _carried(writer: RowWriter, nodes: list[Expr]) -> list[_Carried]:
    """What is carried of reductions in one pass; of a maximum and the sum of its online softmax, once."""
    together = writer.emitter.facts.together
    sums = {together[node]: node for node in nodes if node in together}
    return [_Carried(writer, node, sums.get(node)) for node in nodes if node not in together]


@attrs.define(init=False)
class _Carried:
    """The accumulators of one reduction (with its sum, for a maximum that starts an online softmax) in a pass.

    ``names``: those of the accumulators, by stem, in the order in which they were begun; ``edges``: of those for the
    elements at the row's ends.
    """

    writer: RowWriter
    node: Expr
    softmax_sum: Expr | None
    names: dict[str, str]
    edges: dict[str, str]

    def __init__(self, writer: RowWriter, node: Expr, softmax_sum: Expr | None) -> None:
        self.writer, self.node, self.softmax_sum = writer, node, softmax_sum
        self.names, self.edges = {}, {}

    @property
    def kind(self) -> str:
        return self.node.payload.kind

    def _start(self, stem: str, value: str, dtype: torch.dtype, shape: str | None = None) -> str:
        """Name of an accumulator, which begins with a value ahead of the pass."""
        if stem not in self.names:
            name = self.names[stem] = self.writer.emitter.fresh(stem)
            shape = shape or self.writer.emitter.shape(self.writer.full)
            self.writer.emitter.base.line(f"{name} = tl.full({shape}, {value}, {triton_type(dtype).register})")
        return self.names[stem]

    def step(self, scope: Scope) -> None:
        """Take in one block."""
        if self.softmax_sum is not None:
            shape, dtype = online_softmax.lane_shape(self.writer, self.node), self.node.dtype
            best = self._start("max", online_softmax.NOTHING, dtype, shape)
            total = self._start("sum", "0.0", dtype, shape)
            online_softmax.write_step(self.writer, self.node, best, total, scope)
        elif self.kind == "welford":
            self._welford_step(scope)
        elif self.kind in ("argmin", "argmax"):
            self._arg_step(scope)
        else:
            self._plain_step(scope)

    def step_at_edges(self, scope: Scope) -> None:
        """Take in the elements at the row's ends, with accumulators of their own."""
        lanes, self.names = self.names, {}
        self.step(scope)
        self.names, self.edges = lanes, self.names

    def finish(self, scope: Scope) -> None:
        """Reduce the accumulators, and name the results."""
        emitter, writer, node = self.writer.emitter, self.writer, self.node
        if self.softmax_sum is not None:
            lanes = [(names["max"], names["sum"]) for names in (self.names, self.edges) if names]
            best, total = online_softmax.write_end(writer, lanes, scope)
            scope.names[node, None], scope.names[self.softmax_sum, None] = best, total
        elif self.kind == "welford":
            self._welford_end(scope)
        elif self.kind in ("argmin", "argmax"):
            results = emitter.fresh("best"), emitter.fresh("at")
            scope.line(f"{', '.join(results)} = {writer.collapsed_by(f'{self.kind}_of', *self.names.values())}")
            scope.line(f"{results[1]} = {results[1]}.to(tl.int64)")
            scope.names[node, None] = results[1]
        else:
            dtype = accumulator(self.kind, node.dtype)
            totals = [writer.total(self.kind, dtype, names["acc"]) for names in (self.names, self.edges) if names]
            text = from_accumulator(writer.combined(self.kind, dtype, totals), dtype, node.dtype)
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
        candidate, position = self.writer.candidates(self.node, scope)
        scope.line(f"{best}, {at} = {self.kind}_of({best}, {at}, {candidate}, {position})")

    def _welford_step(self, scope: Scope) -> None:
        emitter, dtype = self.writer.emitter, self.node.dtype
        mean, m2 = self._start("mean", "0.0", dtype), self._start("m2", "0.0", dtype)
        seen = self._start("seen", "0.0", dtype, "[]")
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
        lanes = [(self.names["mean"], self.names["m2"], self._lane_count(scope))]
        if self.edges:
            register = triton_type(node.dtype).register
            lanes.append((self.edges["mean"], self.edges["m2"], f"edgemask.to({register})"))
        near = emitter.fresh("near")
        means = [writer.collapsed("tl.sum", f"{mean} * {count}") for mean, _, count in lanes]
        scope.line(f"{near} = {writer.over_row(writer.combined('sum', node.dtype, means), node.dtype)}")
        terms = []
        for mean, m2, count in lanes:
            apart = emitter.fresh("apart")
            scope.line(f"{apart} = {mean} - {near}")
            terms.append((f"{count} * {apart}", f"{m2} + {count} * {apart} * {apart}"))
        results = writer.corrected(near, terms, node.dtype, scope)
        for which, name in zip(("mean", "m2"), results, strict=True):
            scope.names[Expr.make("part", (node,), node.dtype, which), None] = name

    def _lane_count(self, scope: Scope) -> str:
        """How many elements each lane of the block has seen."""
        emitter, tile = self.writer.emitter, self.writer.row
        register = triton_type(self.node.dtype).register
        count = f"(({emitter.end(tile)} - rbase + ({tile.block} - 1)) // {tile.block})"
        name = emitter.named(scope, ("lanes", register), "lanes", f"tl.maximum({count}, 0).to({register})")
        return emitter.spread(name, frozenset((tile.variable,)), self.writer.full)
