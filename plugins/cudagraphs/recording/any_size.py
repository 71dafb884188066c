"""One recording for calls of any sizes that launch the same kernels.

Grid and arguments of each of its nodes are known by construction: a replay computes them for the sizes and memory at
hand and writes those that changed into the recording.  Intermediate values lie in memory that each replay takes anew
from the device's allocator, as a call does that is not recorded: it fits the sizes, and nothing stays reserved for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.hooks.graph_capture import MemoryPool, Recording
from turret.plugins.cudagraphs.recording.node import Decision, Inputs, Node, Tally, on_device
from turret.plugins.cudagraphs.recording.outputs import fresh_outputs
from turret.plugins.cudagraphs.recording.recorder import NotRecordable, Recorded
from turret.plugins.cudagraphs.work import Key, RecordingDevice, Shapes, Work

ANY_SIZE: Key = (-1,)
"""The key of recordings that serve calls of any sizes; no sizes of a call are less than zero."""


def why_not(work: Work, key: Key) -> str:
    """Why calls of some sizes are not served by a recording of any; empty where they are."""
    return work.one_size or ("it has a size of 0, for which nothing is launched" if 0 in key else "")


def make_any_size_node(
    recording_device: RecordingDevice, pool: MemoryPool, work: Work, name: str, number: int, args: Sequence[Any]
) -> Node:
    """Record a call's launches; nothing has run.  Raises ``NotRecordable``, or what the device raises."""
    if reason := on_device(args, recording_device, work.states.unread):
        raise NotRecordable(reason)
    key = work.key(args)
    shapes = work.shapes(key)
    buffers, memory = _memory(recording_device, work, key, shapes)
    at = 0 if memory is None else memory.data_ptr()
    recording = recording_device.capture.record(
        recording_device.index,
        lambda: work.launch(args, buffers, at, recording_device.current_stream()),
        pool,
        library_calls=False,
    )
    node = Node(
        number=number,
        name=name,
        key=ANY_SIZE,
        shapes=shapes,
        inputs=Inputs({}, {}),
        recorded=Recorded(recording, {}, {}),
        decisions=_decisions(work, args, shapes),
        any_size=True,
    )
    node.replay = _replay(work, recording_device, recording, node.tally)
    return node


def _replay(
    work: Work, recording_device: RecordingDevice, recording: Recording, tally: Tally
) -> Callable[[list, int], list | None]:
    """The function that replays: it keeps the recording and not the node.

    It gives None where a call of these sizes launches other kernels, and raises ``NotRecordable`` where kernels do not
    take its tensors as they lie.
    """

    def replay(args: list, stream: int) -> list | None:
        key = work.key(args)
        shapes = work.shapes(key)
        buffers, memory = _memory(recording_device, work, key, shapes)
        at = 0 if memory is None else memory.data_ptr()
        try:
            refused = recording.replay_as(lambda: work.launch(args, buffers, at, stream), stream)
        except NotRecordable:
            raise
        except BaseException:
            tally.broken = True
            raise
        if refused:
            return None
        tally.replays += 1
        for n in work.copied_into:
            if not args[n].is_inference():
                torch.autograd.graph.increment_version(args[n])
        results = fresh_outputs(shapes, buffers, args)
        args.clear()
        return results

    return replay


def _memory(
    recording_device: RecordingDevice, work: Work, key: Key, shapes: Shapes
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Memory for the outputs of a call, and for its intermediate values."""
    buffers = [recording_device.empty(b.shape, b.stride, b.dtype) for b in shapes.buffers]
    nbytes = work.intermediate_bytes(key)
    return buffers, recording_device.empty((nbytes,), (1,), torch.uint8) if nbytes else None


def _decisions(work: Work, args: Sequence[Any], shapes: Shapes) -> tuple[Decision, ...]:
    """What is done with each input, output and float: all are known by construction."""
    by_launch = "each launch is written with it"
    tensors = [n for n, a in enumerate(args) if isinstance(a, torch.Tensor)]
    found = [Decision("input", n, "patched", by_launch) for n in tensors]
    found += [Decision("float", n, "patched", by_launch) for n in range(len(work.float_inputs))]
    for n, result in enumerate(shapes.results):
        if result.kind == "buffer":
            found.append(Decision("output", n, "fresh", by_launch))
        elif result.kind != "value":
            what = f"input {result.source}" if result.kind == "input" else "a constant"
            found.append(Decision("output", n, "alias", f"it is {what}, or a view of it"))
    found.append(Decision("intermediate", 0, "fresh", "each replay takes one block that fits its sizes"))
    return tuple(found)
