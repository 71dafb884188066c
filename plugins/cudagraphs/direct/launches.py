"""From a plan to the same plan with its library calls launched by themselves."""

from __future__ import annotations

import functools

import torch

from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.plan import Call, Plan
from turret.plan.direct import OwnMemory, load_direct, with_memory_given
from turret.plan.executor import LoadedPlan
from turret.plan.sizes import Sizes
from turret.plugins.cudagraphs.direct.candidates import at_sizes, candidates
from turret.plugins.cudagraphs.direct.recording import KnownCalls, record_calls
from turret.plugins.cudagraphs.work import RecordingDevice


def launched(plan: Plan, context: CompileContext, sizes: Sizes) -> tuple[LoadedPlan | None, str]:
    """The plan with its library calls launched by themselves, for calls of these sizes; None where none can be.

    What was done comes with it, in words, with the reasons why others are called as before.  Raises what the device
    raises where it cannot record them.
    """
    sized = at_sizes(plan, sizes)
    found, reasons = candidates(sized)
    where = torch.device(plan.device)
    device = device_for(where.type)
    known = KnownCalls({}, {}, 0)
    if found:
        recording_device = RecordingDevice.of(device, where)
        known = record_calls(sized, found, recording_device, device.keeps_arena)
    count = sum(isinstance(step, Call) for step in plan.steps)
    others = "".join(f"; {op} is called: {reason}" for op, reason in {**known.reasons, **reasons}.items())
    message = f"{len(known.calls)} of {count} library calls are launched directly{others}"
    if not known.calls:
        return None, message
    own = None
    if known.own_bytes:
        own = functools.partial(_own_memory(recording_device).address, known.own_bytes)
    variant, calls = with_memory_given(plan, found, known.calls)
    function = load_direct(variant, calls, context.store("load"), own)
    function.prepare()
    return function, message


_memory: dict[torch.device, OwnMemory] = {}


def _own_memory(recording_device: RecordingDevice) -> OwnMemory:
    """The memory that all launched calls on a device work in beside that of their plans."""
    return _memory.setdefault(recording_device.device, OwnMemory(recording_device.empty))
