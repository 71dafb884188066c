"""Layers that are alike are traced once: what the first left in the graph is copied for those after it.

``find_repeats`` says which calls of the captured graph are alike.  Whether the trace of one segment holds for the
next is decided when that is reached: what comes from outside must look the same to every rule of the tracer
(``Replays.look``).  Then the nodes of the first are copied, and its results are made anew, with the same layouts.

In training the results of a copied segment hang on one node of autograd (``_Copied``).  When the backward comes to it,
autograd runs the backward of the first segment, which is recorded apart, and copied for this segment and the others.
Autograd visits its nodes in the reverse of the order in which they were made, so that the order of calls stays.

A segment is traced each time where sizes are dynamic; where it writes to what comes from outside, makes constants or
unbacked symbols, gives views, or several results that need gradients; and where what it uses needs a
gradient and is used again later, or is what other arguments were computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import fx

from turret.frames.trace_modes import autocast_state
from turret.graph.tensor_versions import version_of
from turret.plugins.joint.fakes import TensorRecipe, layout_key
from turret.plugins.joint.recorder import FORWARD_ONLY, CallLog, inherited
from turret.plugins.joint.repeating.repeats import CallSegment, find_repeats
from turret.plugins.joint.storage import Storage, Tracked, ViewStep
from turret.torch_compat.autograd import sequence_number
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.trees import pytree

if TYPE_CHECKING:
    from turret.plugins.joint.tracer import JointTracer

_CONSTANTS = (
    int, float, bool, complex, str, type(None), torch.Size,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class CannotReplay(Exception):
    """The backward of a segment, which was copied in the forward, cannot be: trace the graph again, call by call."""


class _Refused(Exception):
    """A segment that cannot be copied."""


@attrs.frozen(eq=False)
class _Copy:
    """How to make one node: its arguments refer to nodes by their numbers in a table."""

    target: Any
    args: Any
    kwargs: Any
    meta: dict[str, Any]
    call: int | None
    """Which call of the segment it stems from; None where that is none of them."""


class _Number(int):
    """A node by its place in a table."""


@attrs.frozen(eq=False)
class _Made:
    """A result of the segment in memory of its own."""

    recipe: TensorRecipe
    node: int
    diverged: bool
    differentiable: bool


@attrs.frozen(eq=False)
class _Gradient:
    """A gradient: the node and, of its memory (the incoming gradient's where ``base`` is None), node and layout."""

    recipe: TensorRecipe
    node: int
    diverged: bool
    chain: tuple[ViewStep, ...]
    memory: int
    base: tuple[int, TensorRecipe] | None


@attrs.define(eq=False)
class _Trace:
    """What tracing one segment left behind, by numbers: first what was given, then the nodes that were made."""

    given: list[Any]
    copies: list[_Copy]
    results: dict[int, Any]
    reached: list[int]
    """Of what was given, that which gradients flow to."""
    table: list[fx.Node | None]
    output: torch.Tensor | None
    first: int
    sequence: list[int]
    """Its calls with gradients, and how many came before."""
    backward: dict[tuple, _Backward] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class _Backward:
    copies: list[_Copy]
    gradients: list[Any]
    """For each of ``reached`` a ``_Gradient``, the number of an earlier one for the same tensor (-1 for the incoming
    gradient itself), or None."""


@attrs.define(eq=False)
class _Recording:
    """A segment that is being traced call by call, so that others can copy it."""

    segment: CallSegment
    key: tuple
    given: list[Any]
    versions: list[tuple[int, int] | None]
    nodes: int
    """In the graph so far; ``first`` calls with gradients, and ``autograd`` nodes of autograd."""
    first: int
    autograd: int
    modes: tuple


class Replays:
    """The repeated segments of one captured graph under trace."""

    def __init__(self, tracer: JointTracer, graph: fx.Graph) -> None:
        self.tracer = tracer
        self.segments = find_repeats(list(graph.nodes))
        self.traces: dict[tuple, _Trace | None] = {}
        self.recording: _Recording | None = None
        self.copied = 0

    # The forward.

    def enter(self, position: int, values: dict[fx.Node, Any]) -> CallSegment | None:
        """At a call of the captured graph: the segment that starts there, if it was copied; its results that later
        calls read are in ``values``."""
        segment = self.segments.get(position)
        if segment is None or self.tracer.policy is not None:
            return None
        given = [values[node] for node in segment.given]
        key = self.key(segment, given)
        if key is None:
            return None
        if key not in self.traces:
            self.start(segment, key, given)
            return None
        trace = self.traces[key]
        if trace is None or not self.adds_nothing(trace, segment, values):
            return None
        self.replay(trace, segment, given, values)
        self.copied += 1
        return segment

    def key(self, segment: CallSegment, given: Sequence[Any]) -> tuple | None:
        """All that tracing a segment depends on; None where it is not all known."""
        looks: list[Any] = []
        objects: dict[int, int] = {}
        nodes: dict[fx.Node, int] = {}
        storages: dict[int, int] = {}
        for number, value in enumerate(given):
            if isinstance(value, torch.Tensor):
                look = self.look(value)
                if look is None:
                    return None
                tracked = self.tracer.tracked(value)
                pattern = (
                    objects.setdefault(id(value), number),
                    nodes.setdefault(tracked.node, number),
                    storages.setdefault(id(tracked.storage), number),
                )
                looks.append((look, pattern))
            elif isinstance(value, _CONSTANTS):
                looks.append((type(value), repr(value)))
            else:
                return None
        return segment.kind, tuple(looks), _modes()

    def look(self, value: torch.Tensor) -> tuple | None:
        """What the tracer's rules and autograd can tell of a tensor; None where that is not plain."""
        tracked = self.tracer.known(value)
        if tracked is None or tracked.stale or tracked.replaced or tracked.diverged:
            return None
        layout = self.tracer.layout_key(value)
        if layout is None or tracked.version != tracked.storage.version:
            return None
        return layout, value.requires_grad, value._is_view(), len(tracked.chain)

    def start(self, segment: CallSegment, key: tuple, given: list[Any]) -> None:
        recorder = self.tracer.recorder
        versions = [
            (self.tracer.tracked(v).storage.version, version_of(v)) if isinstance(v, torch.Tensor) else None
            for v in given
        ]
        autograd = sequence_number()
        self.recording = _Recording(
            segment, key, given, versions, len(recorder.graph.nodes), recorder.calls, autograd, _modes()
        )
        recorder.call_log = CallLog()

    def leave(self, position: int, values: dict[fx.Node, Any]) -> None:
        """Behind a call of the captured graph; it may be the last of a segment that was recorded."""
        recording = self.recording
        call_log = self.tracer.recorder.call_log
        if recording is None or call_log is None or position + 1 != recording.segment.end:
            return
        self.recording = self.tracer.recorder.call_log = None
        try:
            trace = self.finish(recording, call_log, values)
        except _Refused:
            trace = None
        self.traces[recording.key] = trace

    def finish(self, recording: _Recording, call_log: CallLog, values: dict[fx.Node, Any]) -> _Trace:
        tracer = self.tracer
        segment, given = recording.segment, recording.given
        if recording.modes != _modes() or recording.nodes + len(call_log.calls) != len(tracer.recorder.graph.nodes):
            raise _Refused
        for value, versions in zip(given, recording.versions, strict=True):
            if (
                isinstance(value, torch.Tensor)
                and (tracer.tracked(value).storage.version, version_of(value)) != versions
            ):
                raise _Refused
        _check_there(segment, values)
        table = [tracer.node(v) if isinstance(v, torch.Tensor) else None for v in given]
        numbers = _numbered(table)
        copies = _copies(call_log.calls, numbers, len(table))
        results = {p: self.result(values[segment.calls[p]], given, numbers, len(given)) for p in segment.leaving}
        _check_memory([values[segment.calls[p]] for p, made in results.items() if isinstance(made, _Made)], tracer)
        outputs = [values[segment.calls[p]] for p, r in results.items() if isinstance(r, _Made) and r.differentiable]
        if len(outputs) > 1:
            raise _Refused
        output = outputs[0] if outputs else None
        reached = [] if output is None else _reached(output, given, recording.autograd)
        return _Trace(
            given=given,
            copies=copies,
            results=results,
            reached=reached,
            table=[*table, *call_log.calls],
            output=output,
            first=recording.first,
            sequence=call_log.sequence,
        )

    def result(self, value: Any, given: Sequence[Any], numbers: dict[fx.Node, int], inputs: int) -> Any:
        """How to make a result: a number of what is given, ``_Made``, or a constant in a tuple of one."""
        for number, other in enumerate(given):
            if value is other and isinstance(value, torch.Tensor):
                return number
        if isinstance(value, _CONSTANTS):
            return (value,)
        if type(value) is not FakeTensor or self.tracer.layout_key(value) is None:
            raise _Refused
        tracked = self.tracer.tracked(value)
        number = numbers.get(tracked.node, -1)
        if number < inputs or not _is_as_made(tracked) or value._is_view() or value.requires_grad == value.is_leaf:
            raise _Refused
        recipe = TensorRecipe(value, views_first=False)
        size = value.untyped_storage().nbytes()
        if value.storage_offset() != 0 or self.tracer.make(recipe).untyped_storage().nbytes() != size:
            raise _Refused
        return _Made(recipe, number, tracked.diverged, value.requires_grad)

    def adds_nothing(self, trace: _Trace, segment: CallSegment, values: dict[fx.Node, Any]) -> bool:
        """Whether gradients from the segment are the first of what they are gradients of.

        Autograd adds up gradients as they come, those of later calls first.  Where one has come already, sums are
        made in the middle of the segment's backward.
        """
        last = segment.calls[-1]
        reached = {id(values[segment.given[n]]) for n in trace.reached}
        readable = [node for node, value in values.items() if id(value) in reached]
        return not any(user > last for node in readable for user in node.users)

    def replay(self, trace: _Trace, segment: CallSegment, given: list[Any], values: dict[fx.Node, Any]) -> None:
        tracer = self.tracer
        inherits = [inherited(call) for call in segment.calls]
        table = [tracer.node(v) if isinstance(v, torch.Tensor) else None for v in given]
        self.copy(trace.copies, table, inherits)
        copied = trace, table, inherits
        for position, result in trace.results.items():
            if isinstance(result, _Made):
                if result.differentiable:
                    reached = [given[n] for n in trace.reached]
                    value = _Copied.apply(self, copied, result.recipe, *reached)
                else:
                    value = tracer.make(result.recipe)
                node = table[result.node]
                assert node is not None  # a result is a tensor, which has a node
                tracer.track(value, node, diverged=result.diverged)
                values[segment.calls[position]] = value
            else:
                values[segment.calls[position]] = given[result] if isinstance(result, int) else result[0]

    def copy(self, copies: Iterable[_Copy], table: list[Any], inherits: Sequence[dict[str, Any]]) -> None:
        """Append copies to the graph, and to the table that their arguments refer to."""
        recorder = self.tracer.recorder
        for copy in copies:
            args, kwargs = _filled_in(copy.args, table), _filled_in(copy.kwargs, table)
            meta = copy.meta if copy.call is None else copy.meta | inherits[copy.call]
            table.append(recorder.copy(copy.target, args, kwargs, meta))

    # The backward.

    def gradients(self, trace: _Trace, table: list[Any], inherits: list[dict[str, Any]], incoming: Any) -> list[Any]:
        """Gradients of ``trace.reached`` for a segment whose nodes are in ``table``."""
        tracer = self.tracer
        look = None if incoming is None else self.look(incoming)
        if look is None or tracer.tracked(incoming).node in table:
            raise CannotReplay
        if look not in trace.backward:
            trace.backward[look] = self.record_backward(trace, incoming)
        backward = trace.backward[look]
        table = [*table, tracer.node(incoming)]
        later = [{k: v for k, v in each.items() if k not in FORWARD_ONLY} for each in inherits]
        self.copy(backward.copies, table, later)
        return self.make_gradients(backward, table, incoming)

    def record_backward(self, trace: _Trace, incoming: torch.Tensor) -> _Backward:
        """Run the backward of the segment that was traced, on another's incoming gradient, beside the graph."""
        tracer, recorder = self.tracer, self.tracer.recorder
        assert trace.output is not None  # gradients come to it
        reached = [trace.given[n] for n in trace.reached]
        storages = {id(s): s for s in (tracer.tracked(v).storage for v in (*reached, trace.output, incoming))}
        versions = [s.version for s in storages.values()]
        refreshed = tracer.refreshed
        with recorder.beside(trace.first, trace.sequence) as call_log:
            found = torch.autograd.grad([trace.output], reached, [incoming], retain_graph=True, allow_unused=True)
        try:
            if refreshed != tracer.refreshed or versions != [s.version for s in storages.values()]:
                raise CannotReplay
            table = [*trace.table, tracer.node(incoming)]
            numbers = _numbered(table)
            copies = _copies(call_log.calls, numbers, len(table))
            return _Backward(copies, self.describe_gradients(found, incoming, numbers))
        except _Refused:
            raise CannotReplay from None
        finally:
            for node in reversed(call_log.calls):
                node.graph.erase_node(node)

    def describe_gradients(
        self, found: Sequence[Any], incoming: torch.Tensor, numbers: dict[fx.Node, int]
    ) -> list[Any]:
        tracer = self.tracer
        described: list[Any] = []
        met: dict[int, int] = {id(incoming): -1}
        storages: dict[int, int] = {}
        for value in found:
            if value is None:
                described.append(None)
                continue
            if id(value) in met:
                described.append(met[id(value)])
                continue
            met[id(value)] = len(described)
            tracked = tracer.tracked(value)
            storage = tracked.storage
            plain = tracer.layout_key(value) is not None and not tracked.layout_changes and not tracked.stale
            if not plain or tracked.version != storage.version or tracked.node not in numbers:
                raise CannotReplay
            base: Any = None
            if storage is not tracer.tracked(incoming).storage:
                node = -1 if storage.base is None else numbers.get(storage.base, -1)
                if node < numbers[tracer.node(incoming)]:
                    raise CannotReplay
                if storage.tensor is None or layout_key(storage.tensor) is None or storage.tensor.storage_offset():
                    raise CannotReplay
                base = node, TensorRecipe(storage.tensor, views_first=False)
            recipe = TensorRecipe(value, views_first=True)
            memory = storages.setdefault(id(storage), len(storages))
            described.append(_Gradient(recipe, numbers[tracked.node], tracked.diverged, tracked.chain, memory, base))
        return described

    def make_gradients(self, backward: _Backward, table: list[fx.Node], incoming: torch.Tensor) -> list[Any]:
        tracer = self.tracer
        made: list[Any] = []
        memories: dict[int, tuple[Storage, torch.Tensor]] = {}
        for gradient in backward.gradients:
            if gradient is None:
                made.append(None)
            elif isinstance(gradient, int):
                made.append(incoming if gradient < 0 else made[gradient])
            else:
                if gradient.memory not in memories:
                    memories[gradient.memory] = self.memory(gradient, table, incoming)
                storage, base = memories[gradient.memory]
                value = tracer.make(gradient.recipe, base)
                node = table[gradient.node]
                tracer.remember(Tracked(value, node, storage, gradient.chain, gradient.diverged))
                made.append(value)
        return made

    def memory(self, gradient: _Gradient, table: list[fx.Node], incoming: torch.Tensor) -> tuple[Storage, torch.Tensor]:
        """The memory of a gradient, and a tensor in it."""
        if gradient.base is None:
            return self.tracer.tracked(incoming).storage, incoming
        node, recipe = gradient.base
        base = self.tracer.make(recipe)
        return Storage(table[node], base), base


class _Copied(torch.autograd.Function):
    """A copied segment as autograd sees it."""

    @staticmethod
    def forward(
        ctx: Any, replays: Replays, copied: tuple, recipe: TensorRecipe, *reached: torch.Tensor
    ) -> torch.Tensor:
        ctx.replays, ctx.copied, ctx.saves_tensors = replays, copied, True
        ctx.set_materialize_grads(False)
        return replays.tracer.make(recipe)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple:
        return (None, None, None, *ctx.replays.gradients(*ctx.copied, gradient))


def _modes() -> tuple:
    """Grad mode, and autocast of every device."""
    return torch.is_grad_enabled(), autocast_state()


def _numbered(table: Sequence[fx.Node | None]) -> dict[fx.Node, int]:
    """The first place of each node in a table."""
    return {node: number for number, node in reversed(list(enumerate(table))) if node is not None}


def _copies(call_log: dict[fx.Node, int | None], numbers: dict[fx.Node, int], known: int) -> list[_Copy]:
    """How to make the nodes of a call_log again; ``numbers`` gets theirs, from ``known`` on."""
    copies = []

    def number(node: fx.Node) -> _Number:
        if node not in numbers:
            raise _Refused
        return _Number(numbers[node])

    for place, (node, call) in enumerate(call_log.items()):
        if node.op != "call_function" or _tells_numbers(node):
            raise _Refused
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), number)
        meta = {key: value for key, value in node.meta.items() if call is None or key in _OWN}
        copies.append(_Copy(node.target, args, kwargs, meta, call))
        numbers[node] = known + place
    return copies


def _tells_numbers(node: fx.Node) -> bool:
    """Whether a call gives numbers that are known as it runs: a copy would give those of the call that was copied."""
    found = pytree.tree_leaves(node.meta.get("val"))
    sizes = [n for value in found if isinstance(value, torch.Tensor) for n in (*value.shape, *value.stride())]
    return any(isinstance(n, _SYMBOLIC) for n in (*found, *sizes))


_SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool
_OWN = frozenset(("val", "partitioner_tag", "original_aten"))
"""What a node's ``meta`` does not have from the call that it stems from."""


def _filled_in(value: Any, table: Sequence[Any]) -> Any:
    kind = type(value)
    if kind is _Number:
        return table[value]
    if isinstance(value, tuple):
        return tuple([_filled_in(v, table) for v in value])
    if isinstance(value, list):
        return [_filled_in(v, table) for v in value]
    if isinstance(value, dict):
        return {k: _filled_in(v, table) for k, v in value.items()}
    if kind is slice:
        return slice(*(_filled_in(v, table) for v in (value.start, value.stop, value.step)))
    return value


def _check_there(segment: CallSegment, values: dict[fx.Node, Any]) -> None:
    """Refuse where a result is read after another segment alone, and is gone after this one."""
    if any(segment.calls[position] not in values for position in segment.leaving):
        raise _Refused


def _check_memory(values: Sequence[torch.Tensor], tracer: JointTracer) -> None:
    """Results that share memory are not copied."""
    if len({id(tracer.tracked(v).storage) for v in values}) != len(values):
        raise _Refused


def _reached(output: torch.Tensor, given: Sequence[Any], first: int) -> list[int]:
    """Which of what is given gradients flow to from ``output``, through nodes of autograd that the segment made.

    Refuses a segment where autograd would run past what is given on the way from one of it to another.
    """
    edges: dict[tuple[Any, int], int] = {}
    for number, value in enumerate(given):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            edge = torch.autograd.graph.get_gradient_edge(value)
            edges.setdefault((edge.node, edge.output_nr), number)
    found: dict[int, Any] = {}
    pending: list[Any] = [output.grad_fn]
    met = {output.grad_fn}
    while pending:
        for node, number in pending.pop().next_functions:
            if node is None:
                continue
            position = edges.get((node, number))
            if position is not None:
                found[position] = node
            elif node._sequence_nr() < first or node.name().endswith("AccumulateGrad"):
                raise _Refused
            elif node not in met:
                met.add(node)
                pending.append(node)
    _check_apart(found.values())
    return sorted(found)


def _check_apart(outside: Iterable[Any]) -> None:
    """Refuse if one of these nodes of autograd is below another."""
    ends = set(outside)
    pending = [below for node in ends for below, _ in node.next_functions if below is not None]
    met = set(pending)
    while pending:
        node = pending.pop()
        if node in ends:
            raise _Refused
        for below, _ in node.next_functions:
            if below is not None and below not in met:
                met.add(below)
                pending.append(below)


def _is_as_made(tracked: Tracked) -> bool:
    """Whether a tensor is no view, and neither its elements nor its layout were changed since it was made."""
    changed = tracked.layout_changes or tracked.stale or tracked.replaced
    return not tracked.chain and not changed and tracked.version == tracked.storage.version
