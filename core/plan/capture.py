"""What a graph-capturing wrapper asks of a plan before it records one call and replays it ever after.

A plan for a device that queues its work is written to be captured: its kernels go to torch's current stream, its arena
comes from the caching allocator (a capture's private pool, then), and ``prepare`` of the loaded plan loads modules
beforehand.  A plan that was scheduled with the option ``cudagraphs`` is cut at what cannot be recorded
(``turret.plan.sections``); of any other, one such step keeps all of it from being recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turret.graph.externs import resolve_op
from turret.graph.obstacles import why_not_recorded
from turret.graph.op_traits import is_collective, is_wait
from turret.hooks.devices import HOST, device_for
from turret.plan import Call, Plan, Slot, View
from turret.plan.executor import refs


def capture_obstacles(plan: Plan, skip_dynamic: bool = False, collectives: bool = False) -> tuple[str, ...]:
    """Why nothing of ``plan`` can be recorded, in sentences; empty where all of it can, or those sections that say so.

    Sizes are constants of a recording: a wrapper keeps one for each value of ``plan.size_symbols``, unless
    ``skip_dynamic`` (the option ``cudagraph_skip_dynamic_graphs``) says that there are to be none.  ``collectives`` may
    be recorded where the option ``cudagraph_collectives`` says so.
    """
    if device_for(torch.device(plan.device).type).graphs is None:
        return (f"{plan.name} runs on {plan.device}, which records no launches",)
    symbols = ", ".join(name for name, source in plan.size_sources.items() if source.kind != "float")
    if skip_dynamic and symbols:
        return (f"{plan.name} has dynamic sizes ({symbols}), and cudagraph_skip_dynamic_graphs is set",)
    if plan.sections:
        if any(section.captured for section in plan.sections):
            return ()
        found = {str(obstacle) for section in plan.sections for obstacle in section.obstacles}
        return tuple(sorted(found))
    if not plan.steps:
        return (f"{plan.name} has nothing to record",)
    return _of_whole(plan, collectives)


def _of_whole(plan: Plan, collectives: bool) -> tuple[str, ...]:
    """Obstacles of a plan that was not cut."""
    kind = torch.device(plan.device).type
    of_data = ", ".join(sorted(plan.data_symbols))
    obstacles = [f"{of_data} depend on data"] if of_data else []
    here = [slot for slot in plan.slots if slot.storage != "elsewhere" and not _is_number(slot)]
    elsewhere = [slot for slot in here if torch.device(slot.device).type != kind]
    obstacles += [f"{slot.name} is a tensor on {slot.device}" for slot in elsewhere]
    for step in plan.steps:
        if isinstance(step, Call):
            why = why_not_recorded(resolve_op(step.op), step.args, _index_dtypes(step, plan), collectives)
            obstacles += [f"{step.op} {why}"] if why else []
    return tuple(dict.fromkeys([*obstacles, *_unpaired(plan)]))


def _unpaired(plan: Plan) -> Iterator[str]:
    """Collectives that are waited for elsewhere, and waits for those of elsewhere.

    Whoever waits for a recorded one outside of its recording waits for none of its replays.
    """
    calls = [step for step in plan.steps if isinstance(step, Call) and is_collective(resolve_op(step.op))]
    bases = {step.slot: step.base for step in plan.steps if isinstance(step, View)}
    begun: list[int] = []
    waited: set[int] = set()
    for step in calls:
        read = {bases.get(ref.slot, ref.slot) for ref in refs([*step.args, *step.kwargs.values()])}
        if is_wait(resolve_op(step.op)):
            waited |= read
            if not read <= set(begun):
                yield f"{step.op} waits for what was begun elsewhere"
        else:
            begun += [slot for slot in (*step.outputs, step.into) if slot is not None]
    if not set(begun) <= waited:
        yield "a collective is begun, which is waited for elsewhere"


def _is_number(slot: Slot) -> bool:
    """Whether a tensor is a constant number of the host, which calls take by value."""
    return slot.storage == "constant" and not slot.shape and torch.device(slot.device) == HOST


def _index_dtypes(step: Call, plan: Plan) -> list[torch.dtype]:
    lists: list[Any] = [a for a in step.args if isinstance(a, list | tuple)]
    return [plan.slots[ref.slot].torch_dtype for ref in refs(lists)]
