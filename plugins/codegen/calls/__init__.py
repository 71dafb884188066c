"""The code generator of last resort: a graph without kernels needs no code, whatever device it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turret.hookspecs import hookimpl
from turret.products import Target

if TYPE_CHECKING:
    from turret.ir import Schedule
    from turret.plan import Plan


@hookimpl
def turret_codegen(schedule: Schedule, target: Target) -> Plan | None:
    """A plan of calls and views; nothing where the schedule has kernels.  Asked after all others."""
    from turret.plan_builder import draft_plan

    draft = draft_plan(schedule, target.device)
    return None if draft.segments else draft.plan
