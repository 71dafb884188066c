"""Compiling in sections: a device that says it records, and executables made of a function for each section."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import turret
from turret.hooks import plugin_manager
from turret.hooks.hookspecs import hookimpl
from turret.plan import Plan
from turret.plan.executor import load
from turret.plan.sections import PlanSection, joined, sections_of
from turret.testing.corpus.operations import OPERATIONS

OPS = sorted({f"aten::{name.split('.')[0]}" for name in OPERATIONS} | {"aten::addmm", "aten::mm", "aten::_softmax"})
"""Names of ops that drawn programs call."""


class Recording:
    """The host as a device that records launches, as far as a scheduler asks; for callables of its own."""

    cache_key = "recording"

    def __init__(self) -> None:
        self.device = copy.copy(plugin_manager.default_manager().hook.turret_device(device_type="cpu"))
        self.device.graphs = object()

    @hookimpl
    def turret_device(self, device_type: str) -> Any:
        return self.device if device_type == self.device.type else None


class Sectioned:
    """Runs every plan section by section, and keeps the sections of all of them.

    What it returns has no ``plan``, so that nobody records it.
    """

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.sections: list[tuple[PlanSection, ...]] = []

    @hookimpl(before="turret.plugins.cudagraphs")
    def turret_wrap_runtime(self, function: Callable) -> Callable:
        plan = function.plan
        sections = sections_of(plan)
        self.plans.append(plan)
        self.sections.append(sections)
        run = joined(plan, sections, [self.function(section) for section in sections])
        return lambda args: run(args)

    def function(self, section: PlanSection) -> Callable:
        """What runs a section."""
        return load(section.plan)


def compiler(split: Sequence[str], watch: Sectioned, **options: Any) -> Callable[[Callable], Callable]:
    """Compiles functions to run in sections, cut at the ops named."""
    options = {"cudagraphs": True, "cudagraph_split_ops": tuple(split), "on_error": "raise", "cache": False, **options}

    def compile(function: Callable) -> Callable:
        return turret.compile(function, plugins=[Recording(), watch], options=options)

    return compile


def stages(function: Callable, *args: Any, split: Sequence[str] = (), role: str | None = None, **options: Any) -> Any:
    """The schedule and the plan of one call, cut."""
    given = {"plugins": [Recording()], "options": {"cudagraphs": True, "cudagraph_split_ops": tuple(split), **options}}
    dynamic = given["options"].pop("dynamic", False)
    joint = turret.joint_graph(function, *args, dynamic=dynamic, **given)
    made = turret.schedule(turret.lower(turret.partition(joint, **given), role, **given), **given)
    return made, turret.codegen(made, **given)
