"""What a graph-capturing wrapper asks of a plan before it records one call and replays it ever after.

A plan for a device that queues its work is written to be captured: its kernels go to torch's current stream, its arena
comes from the caching allocator (a capture's private pool, then), and ``prepare`` of the loaded plan loads modules
beforehand.
"""

from __future__ import annotations

import torch

from turret.devices import device_for
from turret.externs import resolve_op
from turret.plan import Call, Plan

_SYNCHRONISES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def capture_obstacles(plan: Plan) -> tuple[str, ...]:
    """Why one recorded call of ``plan`` cannot stand for later ones, in words; empty where it can.

    Sizes are constants of a recording: a wrapper keeps one for each value of ``plan.size_symbols``.
    """
    kind = torch.device(plan.device).type
    if not device_for(kind).asynchronous:
        return (f"the plan runs on {plan.device}, which queues nothing",)
    if plan.bound_symbols:
        return (f"{', '.join(plan.bound_symbols)} depend on data",)
    elsewhere = [slot for slot in plan.slots if torch.device(slot.device).type != kind]
    obstacles = [f"{slot.name} is a tensor on {slot.device}" for slot in elsewhere]
    for step in plan.steps:
        if isinstance(step, Call) and any(tag in _SYNCHRONISES for tag in resolve_op(step.op).tags):
            obstacles.append(f"{step.op} waits for values of the device")
    return tuple(obstacles)
