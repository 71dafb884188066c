"""Whether a call of a block is like one that was followed: the same guards, checked on its own objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import fx, nn

from turret.frames.guards import Guard, own_keys, own_length, same_constant, same_keys
from turret.frames.sources import BoundSource, CallSource, SizeSource, Source, SourceReader
from turret.plugins.capture.record.fakes import fake_outputs
from turret.plugins.capture.regions.trace import BlockCall, Trace, properties
from turret.plugins.capture.values.base import Constant, Lazy, Tracer, Value
from turret.plugins.capture.values.modules import Module
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor

_STATE = ("_parameters", "_buffers", "_modules")


class MatchFailed(Exception):
    """An assumption of the trace does not hold for the other call."""


class RegionMatcher:
    """A correspondence of the objects of a trace with those of another call."""

    def __init__(self, t: Tracer, trace: Trace) -> None:
        self.t, self.trace = t, trace
        self.images: dict[int, Any] = {}
        """For a module or tensor of the trace, by id, the other call's."""
        self.taken: dict[int, int] = {}
        self.sources: dict[Source, Source] = {}
        self.labels: dict[int, Source] = {}
        self.reader = SourceReader(None, ())
        self.nodes: dict[fx.Node, fx.Node] = {}
        self.values: dict[int, Value] = {}

    # Checking.

    def check(self, call: BlockCall) -> None:
        """Raise ``MatchFailed`` unless everything that the trace assumed holds for ``call``."""
        first = self.trace.call
        if first.state != call.state or first.structure != call.structure:
            raise MatchFailed
        for mine, theirs in zip(first.leaves, call.leaves, strict=True):
            self.leaf(mine, theirs)
        for guard in self.trace.guards:
            self.guard(guard)
        self.assume()
        self.take_inputs()

    def leaf(self, mine: Value, theirs: Value) -> None:
        """Relate an argument to the other call's."""
        mine, theirs = _looked_at(mine), _looked_at(theirs)
        known = self.values.setdefault(id(mine), theirs)
        if known is not theirs and not isinstance(mine, Constant):
            raise MatchFailed
        if mine is theirs:
            return
        if isinstance(mine, Constant) and isinstance(theirs, Constant):
            if not same_constant(theirs.value, mine.value):
                raise MatchFailed
        elif isinstance(mine, Module) and isinstance(theirs, Module):
            self.bind(mine.object, theirs.object, theirs.source)
        elif isinstance(mine, Symbolic) and isinstance(theirs, Symbolic):
            if type(mine.number) is not type(theirs.number) or mine.number.node.expr != theirs.number.node.expr:
                raise MatchFailed
            self.nodes[mine.node] = theirs.node
        elif isinstance(mine, Tensor) and isinstance(theirs, Tensor):
            self.tensor(mine, theirs)
        else:
            raise MatchFailed

    def tensor(self, mine: Tensor, theirs: Tensor) -> None:
        if mine.type() is not theirs.type() or properties(mine.fake) != properties(theirs.fake):
            raise MatchFailed
        if mine.source is not None and any(_rests_on(guard, mine.source) for guard in self.trace.guards):
            raise MatchFailed
        if self.nodes.setdefault(mine.node, theirs.node) is not theirs.node:
            raise MatchFailed

    def guard(self, guard: Guard) -> None:
        """Check one assumption; those that speak of nothing of the trace's own hold already."""
        if guard.source is None:
            return
        source = self.image(guard.source)
        others = tuple(map(self.image, guard.others))
        if source is guard.source and others == guard.others and not self.is_bound(guard):
            return
        found = self.read(source)
        if guard.kind == "ID" and isinstance(guard.expected, (nn.Module, torch.Tensor)):
            self.bind(guard.expected, found, source)
        elif guard.kind in ("IS", "SAME") and isinstance(guard.others[0], BoundSource):
            self.bind(guard.others[0].value, found, source)
        elif guard.kind == "SAME":
            if found is not self.read(others[0] if others != guard.others else guard.source):
                raise MatchFailed
        else:
            holds = _HOLDS.get(guard.kind)
            if holds is None or others or not holds(found, guard.expected):
                raise MatchFailed

    def is_bound(self, guard: Guard) -> bool:
        return guard.kind == "ID" and id(guard.expected) in self.images

    def bind(self, mine: Any, theirs: Any, source: Source | None) -> None:
        """Relate a module or tensor to the other call's, one to one."""
        known = self.images.get(id(mine))
        if known is None:
            if type(mine) is not type(theirs) or self.taken.setdefault(id(theirs), id(mine)) != id(mine):
                raise MatchFailed
            if isinstance(mine, nn.Module):
                _check_state(mine, theirs)
            self.images[id(mine)] = theirs
            if source is not None:
                self.labels[id(mine)] = source
        elif known is not theirs:
            raise MatchFailed

    def image(self, source: Any) -> Any:
        """The source of the other call that corresponds to one of the trace."""
        if source is None:
            return None
        known = self.sources.get(source)
        if known is not None:
            return known
        if isinstance(source, BoundSource):
            theirs = self.images.get(id(source.value))
            if theirs is None or theirs is source.value:
                return source
            label = self.labels.get(id(source.value), source)
            made: Source = type(source)(str(label), theirs)
        else:
            base = source.base_source()
            if base is None:
                return source
            other = self.image(base)
            if other is base:
                return source
            made = attrs.evolve(source, base=other)
        self.sources[source] = made
        return made

    def read(self, source: Source) -> Any:
        """What a source names now; only sources that start at an object that the capture holds."""
        first, *steps = source.steps()
        if not isinstance(first, BoundSource) or any(isinstance(step, (SizeSource, CallSource)) for step in steps):
            raise MatchFailed
        try:
            return self.reader.read(source)
        except Exception:
            raise MatchFailed from None

    def assume(self) -> None:
        """Take the trace's assumptions for the other call's objects."""
        for guard in self.trace.guards:
            source = self.image(guard.source)
            if source is not guard.source:
                expected = self.images.get(id(guard.expected), guard.expected)
                self.t.guards.take(guard.kind, source, expected, tuple(map(self.image, guard.others)))
            else:
                self.t.blocks.note_guard(guard)  # a block around this one rests on it, too

    def take_inputs(self) -> None:
        """Make the other call's tensors inputs of the graph; they must look as the trace's do."""
        by_node = {v.node: v for v in self.t.recorder.by_fake.values()}
        for node, source in self.trace.inputs.items():
            theirs = self.image(source)
            if theirs is source:
                continue
            path = self.labels.get(id(source.value), theirs) if isinstance(source, BoundSource) else theirs
            value = self.t.wrap(self.read(theirs), path)
            mine = by_node[node]
            if not isinstance(value, Tensor) or properties(mine.fake) != properties(value.fake):
                raise MatchFailed
            self.nodes[node] = value.node
            self.values[id(mine)] = value

    # Repeating.

    def repeat(self) -> Value:
        """Record what the trace recorded, for the other call; the other call's result."""
        t, trace = self.t, self.trace
        for node in trace.nodes:
            copied = t.recorder.graph.node_copy(node, lambda n: self.nodes.get(n, n))
            for tag in trace.tags:
                del copied.meta[tag]
            copied.meta.update(t.recorder.tags)
            self.nodes[node] = copied
            t.recorder.calls += node.op != "call_method" or node.target != "size"
        self.make_results()
        assert trace.result_structure is not None
        return trace.result_structure.build(t, iter([self.values.get(id(v), v) for v in trace.results]))

    def make_results(self) -> None:
        """Values of the other call's results."""
        t = self.t
        fresh = []
        for value in self.trace.results:
            if isinstance(value, Tensor) and id(value) not in self.values and value.node in self.nodes:
                fresh.append(value)
                self.values[id(value)] = value  # one value for a tensor that is a result twice
            elif isinstance(value, Symbolic) and value.node in self.nodes:
                self.values[id(value)] = Symbolic(self.nodes[value.node], value.number)
        inputs = [n.meta["example_value"] for n in (self.nodes.get(m, m) for m in self.outside())]
        examples = [v.fake for v in fresh]
        made = fake_outputs(examples, inputs, [e.requires_grad for e in examples])
        for value, fake in zip(fresh, made, strict=True):
            node = self.nodes[value.node]
            node.meta["example_value"] = fake
            self.values[id(value)] = t.recorder.tensor(node, fake)

    def outside(self) -> list[fx.Node]:
        return [*(v.node for v in self.trace.call.tensors()), *self.trace.inputs]


def _looked_at(value: Value) -> Value:
    return value.made if isinstance(value, Lazy) and value.made is not None else value


def _check_state(mine: nn.Module, theirs: nn.Module) -> None:
    """Modules that a search for an attribute finds alike."""
    one, other = vars(mine), vars(theirs)
    if one.keys() != other.keys() or any(tuple(one.get(p, ())) != tuple(other.get(p, ())) for p in _STATE):
        raise MatchFailed


def _rests_on(guard: Guard, source: Source) -> bool:
    """Whether a guard speaks of something reached through a source, other than what a tensor's properties tell."""
    if guard.source == source:
        return guard.kind not in ("TENSOR", "ID", "IS")
    step = guard.source
    while step is not None:
        if step == source:
            return True
        step = step.base_source()
    return source in guard.others


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "ID": lambda found, expected: found is expected,
    "TYPE": lambda found, expected: type(found) is expected,
    "EQUALS": same_constant,
    "LENGTH": lambda found, expected: len(found) == expected,
    "KEYS": lambda found, expected: same_keys(found, expected) if expected else not found,
    "OWN_LENGTH": lambda found, expected: own_length(found) == expected,
    "OWN_KEYS": lambda found, expected: same_keys(own_keys(found), expected),
    "HAS_KEY": lambda found, expected: expected in found,
    "NO_KEY": lambda found, expected: expected not in found,
    "TENSOR": lambda found, expected: isinstance(found, torch.Tensor) and expected.holds(found),
    "CALL": lambda found, expected: expected[0](found) == expected[1],
}
"""What ``turret.frames.guards.KINDS`` checks, of a value that was read."""
