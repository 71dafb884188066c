"""Kernels in OpenCL for tensors of the host: ``turret.compile(f, plugins=[Plugin()])``."""

from __future__ import annotations

import json
from typing import Any

import attrs

import turret
from turret.hooks.context import CompileContext
from turret.hooks.devices import HOST, device_for
from turret.hooks.products import Target
from turret.plan import Plan
from turret.storage.libraries import built_library


class Plugin:
    """The host's device, running what this code generator makes and nothing else."""

    cache_key = "opencl 1"

    @turret.hookimpl(wrapper=True)
    def turret_device(self, device_type: str) -> Any:
        """The host's device as it is found without this plugin, with kernels of another kind."""
        device = yield
        if device_type != HOST.type:
            return device
        from turret.contrib.opencl.runtime import opencl_device

        return opencl_device(type(device))

    @turret.hookimpl
    def turret_codegen(self, context: CompileContext, schedule: Any, target: Target) -> Plan | None:
        """Write and compile (or find in the cache) the program of a schedule."""
        if "opencl" not in device_for(target.device_type).kernel_languages:
            return None
        from turret.contrib.opencl.kernel import emit
        from turret.contrib.opencl.language import program
        from turret.contrib.opencl.runtime import BINARY, STEPS, driver
        from turret.plan.builder import draft_plan

        draft = draft_plan(schedule, target.device)
        if not draft.segments:
            return draft.plan
        tensors, hints = schedule.program.declarations(), schedule.program.hints
        sources: dict[str, str] = {}
        steps: dict[str, list[Any]] = {segment.name: [] for segment in draft.segments}
        for segment in draft.segments:
            for made in (emit(kernel, tensors, hints) for kernel in segment.kernels):
                sources[made.name] = made.source
                places = [*map(draft.slot_of.get, made.tensors), *map(draft.size_slot.get, made.symbols), *made.streams]
                steps[segment.name].append((made.groups, [list(sources).index(made.name), *places]))
        key = source, table, _ = program(sources), json.dumps(steps), driver().name
        build = lambda: {BINARY: driver().compile(source), STEPS: table.encode()}  # noqa: E731
        return attrs.evolve(draft.plan, source=source, library=built_library(context, BINARY, key, build))
