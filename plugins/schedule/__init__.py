"""The built-in scheduler: inline, fuse by saved bytes, order, and plan memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turret.hooks.config import Option
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.hookspecs import hookimpl

if TYPE_CHECKING:
    from turret.hooks.products import Target
    from turret.ir import AttentionCandidate, FusionCandidate, LoopProgram, ProductCandidate, Schedule


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """How much is fused, and which roundings a fused kernel keeps."""
    rounding = "round half-precision intermediates inside a kernel as eager does"
    return (
        Option(name="emulate_precision_casts", default=False, doc=rounding),
        Option(name="max_fusion_size", default=64, doc="most definitions fused into one kernel", low=1),
    )


@hookimpl
def turret_schedule(context: CompileContext, program: LoopProgram, target: Target | None) -> Schedule:
    """Fuse a program's definitions into kernels and put all steps in order."""
    from turret.plugins.schedule.stage import schedule

    return schedule(context, program, target)


@hookimpl
def turret_choice_cost(candidate: ProductCandidate | AttentionCandidate, target: Target) -> float | None:
    """What the device's ``ProductCosts`` say."""
    costs = device_for(target.device_type).products(target.arch)
    if costs is None:
        return None
    from turret.ir import AttentionCandidate
    from turret.plugins.schedule import attention, products

    if isinstance(candidate, AttentionCandidate):
        return attention.estimated_cost(candidate, costs.attention)
    return products.estimated_cost(candidate, costs)


@hookimpl
def turret_fusion_score(candidate: FusionCandidate) -> float:
    """Bytes of memory traffic saved."""
    return float(candidate.saved_bytes or 0)
