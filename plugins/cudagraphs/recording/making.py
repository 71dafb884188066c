"""From one call to a node: its inputs sorted by where they lie, the call recorded, its outputs' memory found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.hooks.graph_capture import MemoryPool
from turret.plugins.cudagraphs.recording.node import (
    ALIGNMENT,
    Block,
    Decision,
    Inputs,
    Node,
    Spot,
    on_device,
    overlapping,
)
from turret.plugins.cudagraphs.recording.recorder import (
    AllocatingCall,
    Item,
    NotRecordable,
    Numbers,
    Recorded,
    Recorder,
    ResultPlace,
    Returned,
)
from turret.plugins.cudagraphs.recording.replay import write_replay
from turret.plugins.cudagraphs.work import Key, Layout, RecordingDevice, Result, Shapes, Work


def sort_inputs(
    work: Work, args: Sequence[Any], pooled: Mapping[int, Any], moved: frozenset[int], recording_device: RecordingDevice
) -> Inputs:
    """Which inputs lie still; ``moved``: static ones that were seen to move, ``pooled``: outputs on the path."""
    if reason := on_device(args, recording_device, work.states.unread):
        raise NotRecordable(reason)
    fixed: dict[int, int] = {}
    moving: dict[int, Layout] = {}
    reasons: dict[int, str] = {}
    for n, value in enumerate(args):
        if not isinstance(value, torch.Tensor) or value.numel() == 0 or n in work.states.unread:
            continue
        if n in pooled:
            fixed[n], reasons[n] = value.data_ptr(), "an output of a node on the path"
        elif n in work.static and n not in moved:
            fixed[n], reasons[n] = value.data_ptr(), "a parameter or buffer"
        else:
            moving[n] = Layout.of(value)
            reasons[n] = "a parameter or buffer that was seen to move" if n in work.static else ""
    return Inputs(fixed, moving, frozenset(pooled) & fixed.keys(), reasons)


@attrs.frozen(eq=False)
class Making:
    """What a node is made in: a pool, the state of its bookkeeping, and how the node is to be.

    ``copies``: inputs are copied to memory of the pool whatever their words say (why, else empty); ``copied``: results
    that the recording copies to buffers, and why, as is known of another recording of the function.
    """

    recording_device: RecordingDevice
    pool: MemoryPool
    state: Any = None
    dead: tuple[int, ...] = ()
    pooled: Mapping[int, Spot] = attrs.field(factory=dict)
    moved: frozenset[int] = frozenset()
    copies: str = ""
    copied: Mapping[Item, str] = attrs.field(factory=dict)
    number: int = 0
    why: str = ""


def make_node(making: Making, work: Work, name: str, key: Key, args: Sequence[Any], pools_outputs: bool) -> Node:
    """Record a call; its outputs lie in the pool, or in memory that each replay takes anew.

    Nothing has run: the caller replays the node.  Raises ``NotRecordable``, or what the call or the device raises.
    """
    recording_device, shapes = making.recording_device, work.shapes(key)
    inputs = sort_inputs(work, args, making.pooled, making.moved, recording_device)
    items: dict[Item, torch.Tensor] = {("input", n): args[n] for n in inputs.moving}
    run, bumps = _runner(work, args, None if pools_outputs else len(shapes.buffers))
    returned = _returned(work, shapes, making)
    if not pools_outputs:
        made: dict[Item, torch.Tensor] = {
            ("buffer", n): recording_device.empty(b.shape, b.stride, b.dtype)
            for n, b in enumerate(shapes.buffers)
            if ("buffer", n) not in returned.calls
        }
        items |= {key: t for key, t in made.items() if t.numel()}
        run = _with_empty_buffers(run, {key: t for key, t in made.items() if not t.numel()})
    pinned = {key: making.copies for key in items if key[0] == "input"} if making.copies else {}
    numbers = _numbers(work, args)
    reserved = making.pool.reserved_bytes
    recorder = Recorder(recording_device, making.pool, making.state, making.dead)
    recorded, outputs = recorder.record(run, items, pinned, numbers, None if pools_outputs else returned)
    recorded = attrs.evolve(recorded, copied={**making.copied, **recorded.copied})
    first = recorded.addresses | numbers.bits({})
    if reason := overlapping(args, [n for kind, n in recorded.pinned if kind == "input"], work.written):
        raise NotRecordable(reason)
    blocks: tuple[Block, ...] = ()
    if pools_outputs:
        blocks, shapes = pool_blocks(outputs, shapes, args)
    state = making.pool.checkpoint()
    node = Node(
        number=making.number,
        name=name,
        key=key,
        shapes=shapes,
        inputs=inputs,
        recorded=recorded,
        decisions=_decisions(inputs, recorded, shapes, pools_outputs),
        blocks=blocks,
        state=state,
        bytes_kept=making.pool.bytes_in_use(state),
        bytes_taken=making.pool.reserved_bytes - reserved,
        alignments={n: first[("input", n)] % ALIGNMENT for n in inputs.moving if ("input", n) in recorded.words},
        first_addresses=first,
        version_bumps={n: times for n, times in bumps.items() if ("input", n) not in recorded.pinned},
        why=making.why,
    )
    node.replay = write_replay(node, recording_device, len(args), work)
    return node


def _runner(work: Work, args: Sequence[Any], buffers: int | None) -> tuple[Callable[..., Any], dict[int, int]]:
    """Runs the call with memory or floats replaced, and notes how often autograd's versions of its inputs went up."""
    bumps: dict[int, int] = {}

    def run(replaced: Mapping[Item, Any]) -> Any:
        given = [replaced.get(("input", n), a) for n, a in enumerate(args)]
        before = {n: t._version for n, t in enumerate(given) if isinstance(t, torch.Tensor) and not t.is_inference()}
        watched = list(given)
        if buffers is None:
            outputs = work.run(given)
        else:
            made = work.run_into(given, [replaced.get(("buffer", n)) for n in range(buffers)])
            outputs = [ResultPlace.of(tensor) for tensor in made]
            del made
        bumps.clear()
        bumps.update({n: watched[n]._version - v for n, v in before.items() if watched[n]._version != v})
        return outputs

    return run, bumps


def _returned(work: Work, shapes: Shapes, making: Making) -> Returned:
    """Buffers that library calls may write to themselves, in memory that they would allocate."""
    recording_device = making.recording_device
    tells = recording_device.capture.observer() is not None

    def make(item: Item) -> torch.Tensor:
        layout = shapes.buffers[item[1]]
        return recording_device.empty(layout.shape, layout.stride, layout.dtype)

    calls: dict[Item, AllocatingCall] = {
        ("buffer", n): AllocatingCall(call, shapes.buffers[n].nbytes)
        for n, call in work.returned.items()
        if tells and shapes.buffers[n].nbytes and ("buffer", n) not in making.copied
    }
    return Returned(calls, make, lambda items: work.prepare(True, frozenset(n for _, n in items)))


def _numbers(work: Work, args: Sequence[Any]) -> Numbers:
    """The floats of a call."""
    inputs: dict[Item, float] = {("input", n): args[n] for n in work.float_inputs}
    return Numbers(inputs, lambda given: work.floats([given.get(("input", n), a) for n, a in enumerate(args)]))


def _with_empty_buffers(run: Callable[..., Any], empty: Mapping[Item, torch.Tensor]) -> Callable[..., Any]:
    """``run``, given buffers without elements as well, which no replay needs to be told of."""
    return (lambda tensors: run({**tensors, **empty})) if empty else run


def pool_blocks(outputs: Sequence[Any], shapes: Shapes, args: Sequence[Any]) -> tuple[tuple[Block, ...], Shapes]:
    """The memory that outputs lie in, a block for each storage, and how outputs lie in it."""
    own = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
    numbers: dict[int, int] = {}
    blocks: list[Block] = []
    results = []
    for result, output in zip(shapes.results, outputs, strict=True):
        if result.kind != "buffer":
            results.append(result)
            continue
        storage = output.untyped_storage()
        if storage._cdata in own and output.numel():
            raise NotRecordable("a call gave back memory of an input as its own")
        if storage._cdata not in numbers:
            numbers[storage._cdata] = len(blocks)
            blocks.append((storage.data_ptr(), storage.nbytes()))
        results.append(Result("buffer", numbers[storage._cdata], Layout.of(output), output.storage_offset()))
    return tuple(blocks), Shapes((), tuple(results))


def _decisions(inputs: Inputs, recorded: Recorded, shapes: Shapes, pools_outputs: bool) -> tuple[Decision, ...]:
    """What was decided for each input and output, with the reason."""
    found = []
    for n in sorted({*inputs.fixed, *inputs.moving}):
        reason = inputs.reasons.get(n, "")
        pinned = recorded.pinned.get(("input", n))
        if n in inputs.fixed:
            found.append(Decision("input", n, "pooled" if n in inputs.pooled else "static", reason))
        elif pinned is not None:
            found.append(Decision("input", n, "copied", pinned.reason))
        else:
            words = f"its address is {len(recorded.words[('input', n)])} words of the recording"
            found.append(Decision("input", n, "patched", f"{reason}; {words}" if reason else words))
    floats = [(n, words) for (kind, n), words in recorded.words.items() if kind == "float"]
    found += [
        Decision("float", n, "patched", f"its bits are {len(words)} words of the recording") for n, words in floats
    ]
    for n, result in enumerate(shapes.results):
        found += _output_decision(n, result, recorded, pools_outputs)
    return tuple(found)


def _output_decision(n: int, result: Result, recorded: Recorded, pools_outputs: bool) -> list[Decision]:
    if result.kind in ("input", "constant"):
        what = f"input {result.source}" if result.kind == "input" else "a constant"
        return [Decision("output", n, "alias", f"it is {what}, or a view of it")]
    if result.kind == "value":
        return []
    if pools_outputs:
        return [Decision("output", n, "pooled", "outputs stay in the pool")]
    pinned = recorded.pinned.get(("buffer", result.source))
    if pinned is not None:
        return [Decision("output", n, "copied out", pinned.reason)]
    copied = recorded.copied.get(("buffer", result.source))
    if copied is not None:
        reason = f"the recording copies it from where its library call allocates it: {copied}"
        return [Decision("output", n, "fresh", reason)]
    if ("buffer", result.source) in recorded.returned:
        count = len(recorded.words[("buffer", result.source)])
        return [Decision("output", n, "fresh", f"its library call writes to it; {count} words of the recording")]
    return [Decision("output", n, "fresh", "its address is known to all nodes that write it")]
