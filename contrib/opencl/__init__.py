"""Kernels in OpenCL for tensors of the host: ``turret.compile(f, plugins=[Plugin()])``."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import attrs

import turret
from turret.devices import HOST, Device, device_for
from turret.ir import Schedule
from turret.libraries import Library, keep_library, stored_library
from turret.plan import Plan
from turret.plan_builder import draft_plan
from turret.products import Target

LANGUAGE = "opencl"


class Plugin:
    """The host's device, running what this code generator makes and nothing else."""

    cache_key = "opencl 1"

    @turret.hookimpl(wrapper=True)
    def turret_device(self, device_type: str) -> Any:
        """The host's device as it is found without this plugin, with kernels of another kind."""
        device = yield
        if device_type != HOST.type:
            return device
        from turret.contrib.opencl.runtime import OpenClDevice

        return type("OpenClHost", (OpenClDevice, type(device)), {})()

    @turret.hookimpl
    def turret_codegen(self, context: Any, schedule: Schedule, target: Target) -> Plan | None:
        """Write and compile (or find in the cache) the program of a schedule."""
        if LANGUAGE not in device_for(target.device_type).kernel_languages:
            return None
        from turret.contrib.opencl.kernel import emit
        from turret.contrib.opencl.language import prelude
        from turret.contrib.opencl.runtime import BINARY, LAUNCHES, driver

        draft = draft_plan(schedule, target.device)
        if not draft.segments:
            return draft.plan
        sources: dict[str, str] = {}
        launches: dict[str, list] = {}
        tensors, hints = schedule.program.declarations(), schedule.program.hints
        for segment in draft.segments:
            for kernel in segment.kernels:
                made = emit(kernel, tensors, hints)
                sources[made.name] = made.source
                slots, sizes = (draft.slot_of[t] for t in made.tensors), (draft.size_slot[s] for s in made.symbols)
                launches.setdefault(segment.name, []).append((made.name, [*slots, *sizes, *made.streams], made.groups))
        body = "".join(sources.values())
        source, table = prelude(body) + body, json.dumps(launches)
        key = hashlib.sha256("\0".join((source, table, driver().name)).encode()).hexdigest()
        store = context.store("codegen")
        found = stored_library(store, key)
        context.emit("cache_hit" if found else "cache_miss", stage="codegen", message=f"the OpenCL program {key}")
        if found is None:
            keep_library(store, key, {BINARY: driver().compile(source), LAUNCHES: table.encode()})
        return attrs.evolve(draft.plan, source=source, library=Library(key, BINARY))
