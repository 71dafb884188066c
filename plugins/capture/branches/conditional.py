"""An ``if`` that data decide, in a program that must not break: both sides become graphs, of which a ``cond`` runs one.

Each side is followed from the jump up to where the ways meet, from the same state of the frame; what they leave there
in variables, on the stack and as what the frame returns is put together.  A tensor from before that a side writes to
is a copy of its own within it, and written back behind the ``cond``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import torch

from turret.graph.fakes.either import either_of
from turret.plugins.capture.branches.changes import Changes, MergedChanges
from turret.plugins.capture.branches.graphs import BranchGraphs, scalar_tensor
from turret.plugins.capture.branches.joins import join_of, later_join_of
from turret.plugins.capture.branches.merging import Blank, Merger, Place, Side, TooEarly, gradients_of
from turret.plugins.capture.branches.sinking import Sinker
from turret.plugins.capture.branches.undecided import Undecided
from turret.plugins.capture.branches.watched import Watched
from turret.plugins.capture.errors import NOWHERE, DecidedByData, Raised, Unsupported
from turret.plugins.capture.facts.call_stack import Lines
from turret.plugins.capture.python.bytecode import live_variables
from turret.plugins.capture.record.fakes import fake_outputs
from turret.plugins.capture.record.histories import nodes_below
from turret.plugins.capture.values.base import Constant, Tracer, Unread, Value
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.modes import set_grad_enabled

Way = tuple[int, list[Value]]
"""The instruction and the stack that a side begins with."""
_DEEPEST = 8
"""Branches on data in one another: the graphs of one in the other grow with each."""


class _OuterWrite(BaseException):
    """A side is about to write to tensors from before it; no error of the operation under way."""

    def __init__(self, of: Any, tensors: list[Tensor]) -> None:
        super().__init__()
        self.of, self.tensors = of, tensors


@attrs.define(eq=False)
class Merged:
    """A result of a ``cond`` that is a copy where eager has a tensor from before, and the memory that may be meant.

    ``fakes``: it, and what it may be, with the counts of changes at that time.
    """

    value: Tensor
    origins: list[Tensor]
    fakes: list[tuple[torch.Tensor, int]]
    lines: Lines


def branch_on_data(frame: Any, condition: Value, yes: Way, no: Way, refusal: DecidedByData) -> Value | None:
    """Follow both ways behind the jump under way, as one call of the graph, and go on where they meet.

    Returns what the frame returns where that is where they meet.  Raises ``Unsupported`` where that is not possible.
    """
    t: Tracer = frame.tracer
    join = join_of(frame.code, frame.current) if t.policy.whole else None
    if join is None or frame.goes_on() is not None:  # a loop, or a check that the graph is not to make
        raise refusal
    nested = len(t.recorder.open_regions)
    if nested and not t.recorder.in_side():
        raise refusal  # under a transform a cond has no rule of its own
    if nested >= _DEEPEST:
        raise Unsupported(f"branches on data nested more than {_DEEPEST} deep", refusal.hint)
    try:
        return _Conditional(frame, join).run(condition, yes, no, refusal)
    except DecidedByData:
        raise
    except Unsupported as error:
        if error is not refusal and error.hint == "":
            error.hint = refusal.hint
        raise


def split(frame: Any, value: Undecided, stack: list[Value]) -> Value | None:
    """Follow the instruction under way for either of two objects, of which data have left one.

    ``stack``: as it was ahead of the instruction.  Returns and raises as for a branch.
    """
    refusal = DecidedByData(value.describe(), "hand on an object of one kind")
    join, t = join_of(frame.code, frame.current), frame.tracer
    nested = len(t.recorder.open_regions)
    if join is None or nested >= _DEEPEST or (nested and not t.recorder.in_side()):
        raise refusal
    way = frame.current, stack
    return _Conditional(frame, join).run(value.flag, way, way, refusal)


def _predicate(t: Tracer, value: Value) -> Tensor:
    """The truth of a tensor of one element, or of a number, as a tensor of one bool."""
    if isinstance(value, Tensor):
        found: Value = value
        if value.fake.dim():
            found = t.recorder.call_method("reshape", [value, t.new_tuple([])], {})
    else:
        found = scalar_tensor(t, value)
    assert isinstance(found, Tensor)
    if found.fake.dtype is not torch.bool:
        found = t.recorder.call_method("ne", [found, Constant(0)], {})
    assert isinstance(found, Tensor)
    return found


class _Conditional:
    """One jump."""

    def __init__(self, frame: Any, join: int) -> None:
        self.frame, self.t, self.join, self.jump = frame, frame.tracer, join, frame.current
        self.graphs = BranchGraphs(self.t, "cond")
        self.sides: list[Any] = []
        """Of each side what it left; None for one that raises."""
        self.changes: list[Changes] = []
        self.written: list[Tensor] = []

    def run(self, condition: Value, yes: Way, no: Way, refusal: DecidedByData) -> Value | None:
        frame, t = self.frame, self.t
        t.blocks.refuse("a branch on data")
        t.branched = True
        self.variables, self.handling, self.names = list(frame.locals), list(frame.handling), frame.keyword_names
        self.locals = frame.variables
        self.watched, self.merged = Watched(t, frame), len(t.merged)
        self.predicate = predicate = _predicate(t, condition)
        self.own_flag = predicate is not condition or predicate in t.flags
        while True:
            try:
                for way, truth in ((yes, True), (no, False)):
                    self.follow(way, truth)
                self.begin()
                if None in self.sides:
                    self.go_on(condition, yes, no, refusal)
                    return None
                try:
                    return self.close(predicate)
                except TooEarly:
                    later = later_join_of(frame.code, self.jump, self.join)
                    if later is None or not t.policy.splits:
                        raise
                self.join = later
                self.begin_again([])
            except _OuterWrite as write:
                if write.of is not self:
                    raise
                self.begin_again(write.tensors)

    def go_on(self, condition: Value, yes: Way, no: Way, refusal: DecidedByData) -> None:
        """Take the way that does not raise; the graph checks that it is the right one."""
        frame, truth = self.frame, self.sides[0] is not None
        del self.t.merged[self.merged :]
        if not any(self.sides):
            raise Unsupported("a branch on data of which both sides raise")
        if self.t.call_stack.catches():
            raise refusal  # an exception that is handled may be what happens every day
        self.t.goes_on(condition, truth)
        self.t.flags.append(self.predicate)
        self.t.decided[id(self.predicate)] = truth  # up to the end of the side that this is a part of
        frame.index, frame.stack[:] = yes if truth else no

    def begin(self) -> None:
        """Have the frame be as it was at the jump."""
        frame = self.frame
        frame.locals[:], frame.handling[:], frame.keyword_names = self.variables, self.handling, self.names
        frame.current = self.jump
        self.watched.restore()

    def begin_again(self, tensors: list[Tensor]) -> None:
        """Follow both sides once more, which have copies of their own of some tensors."""
        self.begin()
        self.watched.check()
        for value in tensors:
            others = [v for v in self.watched.sharing(value.fake) if v is not value]
            if others or type(value) is not Tensor or value.outer is not None or value.array is not None:
                reason = f"a branch on data of which a side writes to {value.describe()}, which shares its memory"
                raise Unsupported(reason)
            if value in self.written or value.new_data is not None or value.fake.layout is not torch.strided:
                raise Unsupported(f"a branch on data of which a side writes to {value.describe()}")
            self.written.append(value)
        del self.t.merged[self.merged :]
        self.graphs = BranchGraphs(self.t, "cond")
        self.sides, self.changes = [], []

    def prevent(self, fake: torch.Tensor) -> None:
        """Told of a write in a side: raises where it is to memory from before."""
        around, storage = self.watched.around(), fake.untyped_storage()._cdata
        inside = self.t.recorder.open_regions[self.depth :]
        graphs = [g for g in around if g not in [r.graph for r in inside]]
        found = {
            id(v): v
            for v in self.t.recorder.by_fake.values()
            if v.node.graph in graphs and v.fake.layout is torch.strided
            if v.fake.untyped_storage()._cdata == storage
        }
        live = [v for v in found.values() if id(v) in self.watched.values or v.source is not None]
        if found and not live:
            raise Unsupported("a branch on data of which a side writes to a tensor that nothing leads to")
        if live:
            raise _OuterWrite(self, live)

    def follow(self, way: Way, truth: bool) -> None:
        """Follow one side, with this truth of the predicate, up to where the ways meet."""
        known = dict(self.t.decided)
        self.t.decided[id(self.predicate)] = truth
        try:
            self.follow_known(way)
        finally:
            self.t.decided.clear()
            self.t.decided.update(known)

    def follow_known(self, way: Way) -> None:
        frame, recorder = self.frame, self.t.recorder
        self.begin()
        frame.index, frame.stack[:] = way[0], way[1]
        self.depth = len(recorder.open_regions)
        originals = [(v, v.node, v.fake) for v in self.written]
        changes = Changes(self.t, self.watched)
        self.changes.append(changes)
        with recorder.region() as region:
            region.of_side = True
            for node in self.graphs.lifted():
                region.input_for(node)
            try:
                for value in self.written:
                    self.copy(value)
                recorder.versions.watchers.append(self.prevent)
                try:
                    signal = frame.execute(self.join, self.jump)
                except Raised:
                    signal = None
                finally:
                    recorder.versions.watchers.pop()
                own = {id(v): (v.node, v.fake) for v in self.written}
            finally:
                changes.take_back()
                for value, node, fake in originals:
                    value.node, value.fake = node, fake
        if signal is None:
            self.begin()
            self.watched.check()
            self.sides.append(None)
            return
        result = self.result_of(signal)
        cells = [cell.content for cell, _ in self.watched.cells]
        self.sides.append(Side(list(frame.locals), list(frame.stack), cells, result, own))
        if frame.handling != self.handling or frame.variables is not self.locals:
            raise Unsupported("a branch on data of which a side handles an exception, or asks for locals()")
        for cell, content in self.watched.cells:
            cell.content = content
        self.watched.check()
        self.graphs.regions.append(region)

    def result_of(self, signal: Any) -> Value | None:
        """What a side returns; None where it comes to the join."""
        returns = self.join == len(self.frame.instructions)
        if str(signal) != ("returned" if returns else "joined"):
            raise Unsupported("a branch on data of which a side does not come to where the other one does")
        return self.frame.result if returns else None

    def copy(self, value: Tensor) -> None:
        """Give the side under way a copy of a tensor, in its place."""
        made = self.t.recorder.call_method("clone", [value], {})
        if str(made.fake.stride()) != str(value.fake.stride()):
            raise Unsupported(f"a branch on data of which a side writes to {value.describe()}, of strides of its own")
        value.node, value.fake = made.node, made.fake
        self.t.recorder.by_fake[id(made.fake)] = value
        self.t.kept.append(made.fake)  # what is known by its id lives as long

    # The call.

    def close(self, predicate: Tensor) -> Value | None:
        """Record the call, and put together what the sides left."""
        frame = self.frame
        one, other = self.sides
        for value in self.written:
            self.check_written(value)
        merger = Merger(self.t, self.sides, self.watched, predicate)
        places = self.places(merger, one, other)
        stack = merger.stack() if one.result is None else []
        cells = [merger.place(a, b) for a, b in zip(one.cells, other.cells, strict=True)]
        result = None if one.result is None else merger.needed(one.result, other.result)
        changed = MergedChanges(self.t, merger, *self.changes)
        pairs = [*merger.outputs, *((v, v) for v in self.written)]
        if merger.needs_flag:
            merger.flag = self.flag()
        results = self.record(predicate, merger, pairs) if pairs or self.checks() else []
        results = results[: len(pairs)]
        count = len(merger.outputs)
        for value, found in zip(self.written, results[count:], strict=True):
            self.write_back(value, found)
        self.mark(merger, results[:count])
        self.mark_gradients(merger, results[:count])
        frame.locals[:] = [place(results) for place in places]
        frame.stack[:] = [place(results) for place in stack]
        for (cell, _), place in zip(self.watched.cells, cells, strict=True):
            cell.content = place(results)
        changed.apply(results)
        if result is not None:
            return result(results)
        frame.index = self.join
        return None

    def flag(self) -> Tensor:
        """The predicate, which no program changes."""
        t = self.t
        flag = self.predicate if self.own_flag else t.recorder.call_method("clone", [self.predicate], {})
        assert isinstance(flag, Tensor)
        t.flags.append(flag)
        return flag

    def check_written(self, value: Tensor) -> None:
        """Refuse a write to a tensor that a side has looked at in another way, or whose layout it changes."""
        layouts = {(str(v.shape), str(v.stride())) for v in (value.fake, *(s.own[id(value)][1] for s in self.sides))}
        if len(layouts) > 1 or any(v is not value for v in self.watched.sharing(value.fake)):
            raise Unsupported(f"a branch on data of which a side changes {value.describe()}, or what shares its memory")

    def places(self, merger: Merger, one: Side, other: Side) -> list[Place]:
        """The variables; of those that nothing reads any more there is no result."""
        count = len(self.frame.code.co_varnames)
        found: list[Place] = []
        over = self.join == len(self.frame.instructions)
        live = frozenset() if over else live_variables(self.frame.code, self.join)
        unread = Unread("a variable after a branch on data", NOWHERE)
        for slot, (a, b) in enumerate(zip(one.variables, other.variables, strict=True)):
            if slot < count and slot not in live and a is not b:
                found.append(lambda results: unread)
            else:
                found.append(merger.place(a, b))
        return found

    def checks(self) -> bool:
        """Whether a side checks something as it runs."""
        return any("assert" in str(n.target) for r in self.graphs.regions for n in r.graph.nodes)

    def record(self, predicate: Tensor, merger: Merger, pairs: list[tuple[Value, Value]]) -> list[Value]:
        """The call of the ``cond``; returns its results, numbers as numbers."""
        t, recorder = self.t, self.t.recorder
        pairs = pairs or [(Constant(0), Constant(0))]
        around = set(self.watched.around())
        outer = {
            v.fake.untyped_storage()._cdata
            for v in recorder.by_fake.values()
            if v.node.graph in around and v.fake.layout is torch.strided
        }
        ends = []
        for number, (side, region) in enumerate(zip(self.sides, self.graphs.regions, strict=True)):
            taken = set(outer)
            with recorder.within(region):
                ends.append([merger.node(pair[number], side, taken) for pair in pairs])
        self.sink(pairs)
        self.graphs.lift_numbers()
        self.graphs.line_up()
        nodes = self.graphs.close_at(ends)
        lifted = self.graphs.lifted()
        fakes = []
        for pair, mine, theirs in zip(pairs, *ends, strict=True):
            fakes.append(self.fake(mine, theirs, _is_of_tensors(pair)))
        arguments = (recorder.argument(predicate)[0], *nodes, tuple(map(recorder.node_here, lifted)))
        call = recorder.record("call_function", torch.ops.higher_order.cond, arguments, {}, tuple(fakes))
        call.meta["is_if"] = True
        found = recorder.unpacked(call, tuple(fakes)).unpack(t)
        return [self.taken(value, _is_of_tensors(pair)) for pair, value in zip(pairs, found, strict=True)]

    def taken(self, result: Value, is_tensor: bool) -> Value:
        """A result as the program has it: a number, or a tensor; all of a ``cond`` that has gradients have them."""
        recorder = self.t.recorder
        if not is_tensor:
            return recorder.call_method("item", [result], {})
        assert isinstance(result, Tensor)
        differentiable = result.fake.is_floating_point() or result.fake.is_complex()
        flows = result.fake.requires_grad or not differentiable
        return result if flows else recorder.call_method("detach", [result], {})

    def sink(self, pairs: list[tuple[Value, Value]]) -> None:
        """Have each side compute what it alone has gradients for, and take the rest without gradients."""
        common: dict[Any, None] = {}
        leaves: list[torch.Tensor] = []
        for pair in pairs:
            fakes = [fake for s, v in zip(self.sides, pair, strict=True) for fake in self.fakes([v], s)]
            if not any(fake.requires_grad for fake in fakes):
                continue
            leaves += [fake for fake in fakes if fake.grad_fn is None]
            below = [set(nodes_below(self.fakes([v], s))) for s, v in zip(self.sides, pair, strict=True)]
            both = below[0] & below[1] | self.told(below[0] | below[1])
            if any(isinstance(v, Blank) for v in pair):
                leaves += _variables(below[0] | below[1])
            common.update(dict.fromkeys(both))
            for region, mine in zip(self.graphs.regions, below, strict=True):
                sinker = Sinker(self.t, region, both)
                for node in [n for n in region.lifted if _grad_fn(n) in mine - both]:
                    sinker.sink(node)
        leaves += _variables(common)
        self.graphs.drop_unused()
        self.graphs.detach(
            lambda v: v.grad_fn in common if v.grad_fn is not None else any(v is leaf for leaf in leaves)
        )

    def told(self, nodes: set[Any]) -> set[Any]:
        """Of nodes of autograd, those of tensors that the same flag tells: they have gradients where it is so."""
        return {n for n in nodes if self.predicate in self.t.told_by.get(n, ())}

    def fake(self, mine: Any, theirs: Any, is_tensor: bool) -> torch.Tensor:
        """A result for an output: gradients flow from it to what they flow to in the sides."""
        first, second = mine.meta["example_value"], theirs.meta["example_value"]
        flows = is_tensor and (first.requires_grad or second.requires_grad)
        below = set(nodes_below([first, second])) if flows else set()
        given = [n.meta["example_value"] for n in self.graphs.lifted()]
        reached = [
            v
            for v in given
            if isinstance(v, torch.Tensor) and v.requires_grad
            if flows and (v is first or v is second or v.grad_fn in below or _is_below(v, below))
        ]
        with self.t.recorder.fake_mode, torch.no_grad():
            example = either_of(first, second, self.t.recorder.unknown_size)
        assert example is not None  # the merger has compared them
        (made,) = fake_outputs([example], reached, [flows])
        if made.requires_grad != flows:
            raise Unsupported("a branch on data with results that require gradients where none are recorded")
        return made

    def write_back(self, value: Tensor, found: Value) -> None:
        """Write to a tensor what the side that ran has made of it."""
        recorder, (one, other) = self.t.recorder, (side.own[id(value)][1] for side in self.sides)
        # Writes that autograd does not see leave the history of a copy.
        unseen = all(f.grad_fn is None or f.grad_fn.name().startswith("CloneBackward") for f in (one, other))
        if not unseen and value.fake.is_leaf and value.fake.requires_grad:
            raise Unsupported("a branch on data of which a side writes to a leaf that requires gradients")
        if not self.is_differentiated_alike(value.fake, one, other, unseen):
            raise Unsupported("a branch on data of which a side writes what other tensors get gradients of")
        if unseen and torch.is_grad_enabled() and value.fake.requires_grad:
            self.t.state.set(set_grad_enabled, [Constant(False)], {})
            recorder.call_method("copy_", [value, found], {})
            self.t.state.set(set_grad_enabled, [Constant(True)], {})
        else:
            recorder.call_method("copy_", [value, found], {})

    def is_differentiated_alike(self, fake: torch.Tensor, one: torch.Tensor, other: torch.Tensor, unseen: bool) -> bool:
        """Whether what both sides made of a tensor has the same leaves: those from before, where none should be new."""
        if one.requires_grad != other.requires_grad:
            return False
        if unseen:
            return not torch.is_grad_enabled() or one.requires_grad == fake.requires_grad
        return not one.requires_grad or gradients_of(one) == gradients_of(other)

    def mark(self, merger: Merger, results: list[Value]) -> None:
        """Note which results are copies where eager has a tensor from before, or one of them twice."""
        t = self.t
        found = [(v, pair) for v, pair in zip(results, merger.outputs, strict=True) if _is_of_tensors(pair)]
        memory: list[list[set[int]]] = []
        for _, pair in found:
            memory.append([self.meant(self.fakes([v], side)) for side, v in zip(self.sides, pair, strict=True)])
        around = set(self.watched.around())
        for number, (value, _) in enumerate(found):
            origins: dict[int, Tensor] = {}
            for other, (twin, _) in enumerate(found):
                if other != number and any(a & b for a, b in zip(memory[number], memory[other], strict=True)):
                    origins[id(twin)] = twin  # type: ignore[assignment]
            for known in t.recorder.by_fake.values():
                if known.node.graph in around and any(
                    storages & self.storages_of(known, side)
                    for storages, side in zip(memory[number], self.sides, strict=True)
                ):
                    origins[id(known)] = known
            if origins:
                values = [value, *origins.values()]
                fakes = [(v.fake, t.recorder.versions.of(v.fake)) for v in values]  # type: ignore[attr-defined]
                t.merged.append(Merged(value, list(origins.values()), fakes, t.call_stack.lines()))  # type: ignore[arg-type]

    def mark_gradients(self, merger: Merger, results: list[Value]) -> None:
        """Note which results one side alone has, and what more than theirs a gradient of one is a gradient of."""
        t = self.t
        reached: dict[int, set[int]] = {}
        for number, pair in enumerate(merger.outputs):
            fakes = [s.fake(v) for s, v in zip(self.sides, pair, strict=True) if isinstance(v, Tensor)]
            if any(fake.requires_grad for fake in fakes):
                reached[number] = set[int]().union(*map(gradients_of, fakes))
        every = set[int]().union(*reached.values())
        for number, leaves in reached.items():
            history = results[number].fake.grad_fn  # type: ignore[attr-defined]
            if leaves != every:
                t.more_gradients[history] = every - leaves
            for side, value in enumerate(merger.outputs[number]):
                if isinstance(value, Blank):
                    continue
                if not any(isinstance(v, Blank) for v in merger.outputs[number]):
                    break
                assert isinstance(value, Tensor)
                within = t.told_by.get(self.sides[side].fake(value).grad_fn, [])
                t.told_by[history] = [merger.flag, *(f for v in within if (f := merger.behind(v, side, results)))]

    def storages_of(self, value: Tensor, side: Side) -> set[int]:
        fakes = (value.fake, side.fake(value))
        return {f.untyped_storage()._cdata for f in fakes if f.layout is torch.strided}

    def fakes(self, values: list[Value], side: Side) -> list[torch.Tensor]:
        """Of what a side leaves, the tensors."""
        return [side.fake(v) for v in values if isinstance(v, Tensor)]

    def meant(self, fakes: list[torch.Tensor]) -> set[int]:
        """The memory that tensors lie in, in eager: their own, or that which one may be a copy of."""
        found, before = {fake.untyped_storage()._cdata for fake in fakes}, 0
        while len(found) != before:
            before = len(found)
            for merged in self.t.merged:
                if merged.value.fake.untyped_storage()._cdata in found:
                    found |= {f.untyped_storage()._cdata for f, _ in merged.fakes}
        return found


def _is_of_tensors(pair: tuple[Value, Value]) -> bool:
    """Whether one of the sides has a tensor for a result."""
    return any(isinstance(v, Tensor) for v in pair)


def _variables(nodes: Iterable[Any]) -> list[torch.Tensor]:
    """The leaves among nodes of autograd."""
    return [n.variable for n in nodes if hasattr(n, "variable")]


def _grad_fn(node: Any) -> Any:
    """The node of autograd that a value hangs on; None for a leaf."""
    return getattr(node.meta.get("example_value"), "grad_fn", None)


def _is_below(leaf: torch.Tensor, below: set[Any]) -> bool:
    return any(getattr(node, "variable", None) is leaf for node in below)


def check_merged(t: Tracer, outputs: list[Any]) -> None:
    """Refuse changes of what is a copy where eager has a tensor from before, and results that share its memory."""
    shown = [n.meta["example_value"] for n in outputs if isinstance(n.meta.get("example_value"), torch.Tensor)]
    memory = {v.untyped_storage()._cdata: v for v in shown if v.layout is torch.strided}
    inputs = {
        i.example.untyped_storage()._cdata
        for i in t.recorder.inputs
        if isinstance(i.example, torch.Tensor) and i.example.layout is torch.strided
    }
    _check_gradients(t, shown)
    failed = t.call_stack.failed
    for merged in t.merged:
        t.call_stack.failed = merged.lines
        if any(t.recorder.versions.of(fake) != version for fake, version in merged.fakes):
            reason = "a change of a tensor that, or a copy of which, a branch on data leaves"
            raise Unsupported(reason, step=NOWHERE)
        origins = {f.untyped_storage()._cdata for f, _ in merged.fakes[1:]}
        if merged.value.fake.untyped_storage()._cdata in memory and origins & (inputs | memory.keys()):
            reason = "a result that is another tensor of the program on one side of a branch"
            raise Unsupported(reason, "hand out a clone", step=NOWHERE)
    t.call_stack.failed = failed


def _check_gradients(t: Tracer, shown: list[torch.Tensor]) -> None:
    """Refuse results of which a gradient is zeros for a leaf that eager's leaves as it is, as data decide."""
    for value in shown if t.more_gradients else ():
        more = set[int]().union(*(t.more_gradients.get(node, ()) for node in nodes_below([value])))
        if value.requires_grad and more - gradients_of(value):
            reason = "a branch on data whose sides give gradients to different tensors, and a result of the one"
            raise Unsupported(reason, step=NOWHERE)


def may_be_same(t: Tracer, left: Value, right: Value) -> bool:
    """Whether data decide if two tensors are one object."""
    pairs = ((left, right), (right, left))
    return any(merged.value is a and any(o is b for o in merged.origins) for merged in t.merged for a, b in pairs)
