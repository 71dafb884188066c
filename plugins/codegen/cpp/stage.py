"""What the ``turret_codegen`` hook of C++ does: a schedule to a plan with a compiled library."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import attrs

from turret.hooks.context import CompileContext
from turret.hooks.products import Target
from turret.ir import Kernel, MemoryPlan, Schedule, Template, loads
from turret.plan import Plan
from turret.plan.bounds import extent_position, report_position
from turret.plan.builder import PlanDraft, draft_plan
from turret.plugins.codegen.cpp.blas import Product, blas_products, resolved
from turret.plugins.codegen.cpp.compiler import LIBRARY, compile_unit, find_compiler
from turret.plugins.codegen.cpp.kernel import CppKernel, emit
from turret.plugins.codegen.cpp.merging import merge_similar
from turret.plugins.codegen.cpp.unit import Checks, segment, translation_unit
from turret.storage.libraries import Library


def codegen(context: CompileContext, schedule: Schedule, target: Target) -> Plan:
    """Emit, compile (or find in the cache) and plan."""
    # Where accesses are checked torch's own call does that; what is recorded is recorded call by call.
    products = {} if context.config.check_bounds or schedule.sections else blas_products(schedule)
    schedule = resolved(schedule, products)
    draft = draft_plan(schedule, target.device, lambda template: _result(template) in products)
    if not draft.segments:
        return draft.plan
    if context.config.check_bounds:
        draft = attrs.evolve(draft, plan=attrs.evolve(draft.plan, check_bounds=True))
    source = _source(schedule, draft, products)
    return attrs.evolve(draft.plan, source=source, library=_library(context, source))


def _result(template: Template) -> str:
    """The name of a call's first result."""
    first = template.outputs[0]
    return "" if first is None else first.name


def _source(schedule: Schedule, draft: PlanDraft, products: Mapping[str, Product]) -> str:
    """The translation unit: each distinct kernel once, and a function for each run of kernels."""
    plan = draft.plan
    checks = Checks(extent_position(plan, 0), report_position(plan)) if plan.check_bounds else None
    declarations = schedule.program.declarations()
    memory = schedule.memory
    kernels = merge_similar(
        emit(step, declarations, plan.check_bounds, _in_place(step, memory))
        if isinstance(step, Kernel)
        else products[_result(step)].kernel()
        for run in draft.segments
        for step in run.steps
    )
    unused = iter(kernels)
    segments = []
    for run in draft.segments:
        entries: list[tuple[CppKernel, list[int], list[int]]] = [
            (k, [draft.slot_of[b] for b in k.buffers], [draft.size_slot[s] for s in k.sizes])
            for k in itertools.islice(unused, len(run.steps))
        ]
        segments.append(segment(run.name, entries, checks))
    return translation_unit(kernels, segments)


def _in_place(kernel: Kernel, memory: MemoryPlan) -> dict[str, str]:
    """What a kernel writes, by what it reads where that lies."""
    read = {node.tensor for store in kernel.stores for root in store.roots for node in loads(root)}
    planned = [memory.buffers[store.tensor] for store in kernel.stores if store.tensor in memory.buffers]
    return {buffer.tensor.name: buffer.reuses for buffer in planned if buffer.reuses in read}


def _library(context: CompileContext, source: str) -> Library:
    config = context.config
    compiler = find_compiler(config.cpp_compiler or None, config.cpp_flags)
    entry, found = compile_unit(source, compiler, context.store("codegen"))
    context.emit("cache_hit" if found else "cache_miss", stage="codegen", message=f"the library {entry.key}")
    return Library(entry.key, LIBRARY)
