"""Repeated blocks: a layer is followed once, and what it recorded is recorded again for the layers that are like it.

A call of a block is the call of a module that has siblings of its kind, or of a function marked as a region.  The first
such call is followed as any other, and everything that following it relied on is noted: guards, inputs, nodes, results
(``Trace``).  For the next, ``RegionMatcher`` checks the same guards on its own objects; where all hold, the nodes are
copied with its tensors in place of the first one's.  Nothing is shared at run time, so that fusion sees one graph.

What a trace cannot be repeated for is followed each time: changes of anything that existed before, in-place changes of
tensors that come from outside, results that share memory with arguments, calls of graphs inside the graph.
"""

from __future__ import annotations

import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import fx, nn

from turret.frames.annotations import is_region
from turret.frames.guards import Guard, global_state
from turret.frames.sources import Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.regions.matcher import MatchFailed, RegionMatcher
from turret.plugins.capture.regions.trace import BlockCall, Trace, properties
from turret.plugins.capture.values.base import Constant, Lazy, Tracer, Value
from turret.plugins.capture.values.functions import Cell, Known
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.modules import Module
from turret.plugins.capture.values.objects import DELETED, Instance
from turret.plugins.capture.values.sequences import List, NamedTuple, Sequence, Tuple
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.structures import LEAF, Structure, flatten
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.operators.ops import OpOverload, OpOverloadPacket

MOST_TRACES = 8
"""Of one block under different assumptions; as many failures end the attempts."""

SMALLEST = 3
"""Modules in the tree of one that is worth the bookkeeping without being marked."""


class NotReusable(Exception):
    """A call that cannot be repeated for other instances; the reason is for people."""


class Blocks:
    """The blocks of one capture."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.enabled = t.policy.reuse_blocks
        self.recording: list[Trace] = []
        self.traces: dict[Any, list[Trace]] = {}
        self.failures: Counter[Any] = Counter()
        self.reused: Counter[str] = Counter()
        self.watched_at, self.watchable = -1, True
        self.calls: Counter[int] = Counter()
        self.seen: set[int] = set()
        self.repeated: set[int] = set()

    # Which calls are blocks.

    def is_repeated(self, module: nn.Module) -> bool:
        """Whether a module has siblings of its kind, and is large enough to matter; or is marked."""
        if id(module) not in self.seen:
            for parent in _modules(module):
                if id(parent) in self.seen:
                    continue
                self.seen.add(id(parent))
                kinds = Counter(type(c) for c in parent._modules.values() if c is not None)
                for child in parent._modules.values():
                    if child is not None and kinds[type(child)] > 1 and _is_large(child):
                        self.repeated.add(id(child))
        return id(module) in self.repeated or is_region(module)

    def call_module(self, module: Module, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``module.forward(*args, **kwargs)``, followed or repeated."""
        t = self.t
        forward = module.get_attr(t, "forward")
        if not self.enabled:
            return t.call(forward, args, kwargs)
        key: Any = module.kind
        if not self.is_repeated(module.object):
            self.calls[id(module)] += 1
            if self.calls[id(module)] == 1 or not _is_large(module.object):
                return t.call(forward, args, kwargs)
            key = module  # called again: what is known of it by now holds for itself alone
        arguments = [module, t.new_tuple(args), t.new_dict(kwargs)]
        return self.call(key, module.kind.__qualname__, arguments, lambda: t.call(forward, args, kwargs))

    def call_marked(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], follow: Callable[[], Value]
    ) -> Value:
        """A call of a function that is marked as a region, which ``follow`` follows."""
        if not self.enabled:
            return follow()
        object = function.constant()
        return self.call(object, object.__qualname__, [self.t.new_tuple(args), self.t.new_dict(kwargs)], follow)

    # Following or repeating a call.

    def call(self, key: Any, name: str, arguments: list[Value], follow: Callable[[], Value]) -> Value:
        t = self.t
        call = self.describe(key, name, arguments)
        if call is None or self.failures[key] >= MOST_TRACES or len(self.traces.get(key, ())) >= MOST_TRACES:
            return follow()
        for trace in self.traces.get(key, ()):
            try:
                matcher = RegionMatcher(t, trace)
                matcher.check(call)
            except MatchFailed:
                continue
            self.reused[name] += 1
            return matcher.repeat()
        return self.follow(call, follow)

    def describe(self, key: Any, name: str, arguments: list[Value]) -> BlockCall | None:
        """The call, or None where it cannot be repeated nor repeat another."""
        t = self.t
        if t.recorder.open_regions or t.state.nesting or not self.watch():
            return None
        leaves: list[Value] = []
        structure = _take_apart(t.new_tuple(arguments), leaves)
        if not all(map(_is_plain, leaves)):
            return None
        effects = t.effects.count, len(t.effects.later)
        return BlockCall(
            key,
            name,
            leaves,
            structure,
            (global_state(), tuple(t.recorder.devices), frozenset(t.recorder.tags), effects),
        )

    def watch(self) -> bool:
        """Have changes of what side effects made reachable counted; False where that is not possible."""
        effects = self.t.effects
        if self.watched_at != effects.count:
            pending: list[Any] = [*effects.changed.values(), *effects.attributes.values()]
            pending += [stored for _, stored in effects.globals.values()]
            found = _reachable(pending)
            effects.watched = found or {}
            self.watchable, self.watched_at = found is not None, effects.count
        return self.watchable

    def follow(self, call: BlockCall, follow: Callable[[], Value]) -> Value:
        """Follow a call, and keep what it recorded."""
        t = self.t
        trace = Trace(call, tags=frozenset(t.recorder.tags), of_one=isinstance(call.key, Module))
        for leaf in call.leaves:
            if isinstance(leaf, Module):
                trace.modules.update(map(id, _modules(leaf.object)))
        last, regions, before = (
            next(iter(reversed(t.recorder.graph.nodes)), None),
            t.recorder.regions,
            _Outside.of(t, call),
        )
        self.recording.append(trace)
        try:
            result = follow()
        finally:
            self.recording.remove(trace)
        try:
            after = self.describe(call.key, call.name, [])
            if trace.refused or t.recorder.regions != regions or after is None or after.state != call.state:
                raise NotReusable(trace.refused or "side effects")
            before.check(t, call)
            self.finish(trace, last, result)
        except NotReusable:
            self.failures[call.key] += 1
            return result
        self.traces.setdefault(call.key, []).append(trace)
        return result

    def finish(self, trace: Trace, last: fx.Node | None, result: Value) -> None:
        """Fill in the nodes and results of a trace."""
        t = self.t
        node = t.recorder.graph._root.next if last is None else last.next
        while node.op != "root":
            if node.op != "placeholder":
                _check_node(node)
                trace.nodes.append(node)
            node = node.next
        inside, arguments = set(trace.nodes), {v.node for v in trace.call.leaves if isinstance(v, (Tensor, Symbolic))}
        sources = {item.node: item.source for item in t.recorder.inputs}
        for node in trace.nodes:
            for used in node.all_input_nodes:
                if used in inside or used in arguments or used in trace.inputs:
                    continue
                if used in sources:
                    trace.inputs[used] = sources[used]
        try:
            trace.results, trace.result_structure = flatten(t, result)
        except Unsupported:
            raise NotReusable("a result that is no nest of tensors") from None
        trace.results = [v.realize() for v in trace.results]
        self.check_results(trace, inside)

    def check_results(self, trace: Trace, inside: set[fx.Node]) -> None:
        """Results are new tensors in memory of their own, arguments, inputs, constants or sizes."""
        outside = [n.meta["example_value"] for n in trace.inputs]
        taken = [v.fake for v in trace.call.tensors()] + [f for f in outside if isinstance(f, torch.Tensor)]
        memory = {f.untyped_storage()._cdata for f in taken}
        met: set[int] = set()
        for value in trace.results:
            if id(value) in met or _is_no_new_tensor(value, trace, inside):
                continue
            if not isinstance(value, Tensor) or value.node not in inside or value.stores or value.new_data is not None:
                raise NotReusable("a result that is no new tensor")
            _check_whole(value.fake, memory)
            memory.add(value.fake.untyped_storage()._cdata)
            met.add(id(value))

    # What is noted meanwhile.

    def note_guard(self, guard: Guard) -> None:
        for trace in self.recording:
            trace.note_guard(guard)

    def note_known(self, known: Value, source: Source) -> None:
        for trace in self.recording:
            trace.note_known(known, source)

    def note_made(self, value: Value) -> None:
        for trace in self.recording:
            trace.made.add(id(value))

    def refuse(self, reason: str, of_one: bool = False) -> None:
        """Something was looked at in a way that is not on record; ``of_one``: nor for another call of one module."""
        for trace in self.recording:
            if of_one or not trace.of_one:
                trace.refused = trace.refused or reason

    def report(self) -> Iterator[str]:
        """A line for people about each block that was repeated."""
        for name, count in self.reused.items():
            yield f"{name}: followed {len(self._named(name))} times, repeated {count} times"

    def _named(self, name: str) -> list[Trace]:
        return [trace for traces in self.traces.values() for trace in traces if trace.call.name == name]


def _is_no_new_tensor(value: Value, trace: Trace, inside: set[fx.Node]) -> bool:
    """Whether a result is an argument, an input, a constant or a size."""
    if isinstance(value, Constant) or any(value is leaf for leaf in trace.call.leaves):
        return True
    if isinstance(value, Tensor):
        return value.node in trace.inputs
    return isinstance(value, Symbolic) and value.node in inside


def _check_whole(fake: torch.Tensor, memory: set[int]) -> None:
    """Refuse a tensor in one of these memories, or one that is not all that its memory holds."""
    if fake.untyped_storage()._cdata in memory or (fake.requires_grad and fake.is_leaf):
        raise NotReusable("a result in memory that is not its own")
    if fake.storage_offset() != 0 or fake.is_conj() or fake.is_neg():
        raise NotReusable("a result that is a part of a tensor")


@attrs.define(eq=False)
class _Outside:
    """Tensors from outside a call as they were before it."""

    versions: dict[int, int]
    leaves: list[tuple]

    @classmethod
    def of(cls, t: Tracer, call: BlockCall) -> _Outside:
        return cls(
            {i: t.recorder.versions.of(v.fake) for i, v in t.recorder.by_fake.items()},
            [properties(v.fake) for v in call.tensors()],
        )

    def check(self, t: Tracer, call: BlockCall) -> None:
        """Refuse a call that changed one, or an input that it was the first to use."""
        inputs = {id(item.example): 0 for item in t.recorder.inputs if isinstance(item.example, torch.Tensor)}
        for number, version in {**inputs, **self.versions}.items():
            if number in t.recorder.by_fake and t.recorder.versions.of(t.recorder.by_fake[number].fake) != version:
                raise NotReusable("a tensor from outside that was changed in place")
        if [properties(v.fake) for v in call.tensors()] != self.leaves:
            raise NotReusable("an argument whose properties were changed")
        if any(v.stores or v.new_data is not None for v in call.tensors()):
            raise NotReusable("attributes of tensors")


def _reachable(pending: list[Any]) -> dict[int, Value] | None:
    """All values that these hold, by id; None where one of a kind is among them that hides what it holds."""
    found: dict[int, Value] = {}
    while pending:
        value = pending.pop()
        if value is None or value is DELETED or id(value) in found or isinstance(value, (Constant, Lazy, Known)):
            continue
        found[id(value)] = value
        if isinstance(value, (Dict, List)):
            pending += value.contents()
        elif isinstance(value, Set):
            pending += value.parts()
        elif isinstance(value, Sequence):
            pending += value.items
        elif isinstance(value, Cell):
            pending.append(value.content)
        elif isinstance(value, Instance):
            pending += [*value.stores.values(), value.payload]
        elif not isinstance(value, (Tensor, Symbolic)) or getattr(value, "stores", None):
            return None
    return found


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """A module and those below it, each once; a class may have put something else in place of ``modules``."""
    met: set[int] = set()
    waiting = [module]
    while waiting:
        found = waiting.pop()
        if id(found) not in met:
            met.add(id(found))
            yield found
            waiting += [child for child in found._modules.values() if child is not None]


def _is_large(module: nn.Module) -> bool:
    return sum(1 for _ in itertools.islice(_modules(module), SMALLEST)) == SMALLEST


def _is_plain(leaf: Value) -> bool:
    """Whether a value is one that a trace can tell from another: a tensor, a number, an object known by identity."""
    if isinstance(leaf, Tensor):
        return not leaf.stores and leaf.new_data is None
    return isinstance(leaf, (Constant, Symbolic, Module, Known, Lazy))


def _take_apart(value: Value, leaves: list[Value]) -> Structure:
    """The structure of arguments; those that were not looked at stay so."""
    if isinstance(value, Lazy):
        if value.made is None:
            leaves.append(value)
            return LEAF
        value = value.made
    if isinstance(value, NamedTuple) or type(value) is Tuple or type(value) is List:
        kind: type = value.kind if isinstance(value, NamedTuple) else list if isinstance(value, List) else tuple
        items, keys = value.items, ()
    elif isinstance(value, Dict) and value.kind is dict and all(k.is_constant() for k, _ in value.items.values()):
        kind, items = dict, [v for _, v in value.items.values()]
        keys = tuple(k.constant() for k, _ in value.items.values())
    else:
        leaves.append(value)
        return LEAF
    return Structure(kind, tuple(_take_apart(item, leaves) for item in items), keys)


_FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, OpOverload, OpOverloadPacket, type(torch.relu),
)  # fmt: skip


def _check_node(node: fx.Node) -> None:
    """Refuse what holds a graph of its own, or state."""
    plain = node.op == "call_method" or (node.op == "call_function" and isinstance(node.target, _FUNCTIONS))
    if not plain or "unbacked_bindings" in node.meta:
        raise NotReusable(f"a call of {node.target}")
