"""Graph capture: calls of compiled graphs recorded once and replayed; options by which users choose how."""

from __future__ import annotations

import torch

from turret.hooks.config import Config
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import BoxedCallable, Role
from turret.plan import Call, Launch, Plan
from turret.plugins.cudagraphs.direct.diversion import Diversion
from turret.plugins.cudagraphs.options import turret_options

__all__ = ["turret_options", "turret_wrap_runtime"]


@hookimpl
def turret_wrap_runtime(context: CompileContext, function: BoxedCallable, role: Role) -> BoxedCallable | None:
    """Record and replay an executable, where the options ask for it and nothing stands in the way."""
    if not context.config.cudagraphs and not _is_recorded_unasked(context.config, function):
        Diversion.where_wanted(context, function)
        return None
    from turret.plugins.cudagraphs.wrap import wrapped  # a start without recordings does without their machinery

    return wrapped(context, function, role)


def _is_recorded_unasked(config: Config, function: BoxedCallable) -> bool:
    """Whether nobody asked for graph capture, and it may come with time on a device that can."""
    plan = getattr(function, "plan", None)
    if plan is None or not (config.cudagraph_after_calls or is_chain(plan, config.cudagraph_min_kernels)):
        return False
    return device_for(torch.device(plan.device).type).graphs is not None


def is_chain(plan: Plan, kernels: int) -> bool:
    """Whether a plan launches generated kernels and does nothing else, at least so many of them; no plan for 0."""
    if any(isinstance(step, Call) for step in plan.steps):
        return False
    return 0 < kernels <= sum(len(step.origins) for step in plan.steps if isinstance(step, Launch))
