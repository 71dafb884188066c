"""The scheduler: inline, fuse by saved bytes, order, and plan memory."""

from __future__ import annotations

from typing import Any

from turret.hooks.products import Target
from turret.ir import CopyInto, Extern, LoopProgram, Ref, Scatter, Schedule, StridedView
from turret.plugins.schedule.fuse import Fuser
from turret.plugins.schedule.graph import build_graph, memory_roots, ordered
from turret.plugins.schedule.in_place import may_stop, overwritable, readers_first, without_self_copies
from turret.plugins.schedule.inline import inline
from turret.plugins.schedule.kernels import StepMaker, numbered
from turret.plugins.schedule.memory import plan_memory
from turret.plugins.schedule.order import minimize_peak_memory, needed_first, pieces_of
from turret.plugins.schedule.sections import cut_for
from turret.plugins.schedule.units import Unit, units_of, unread


def schedule(context: Any, program: LoopProgram, target: Target | None = None) -> Schedule:
    """Fuse a program's definitions into kernels and put all steps in order."""
    elide_casts = not context.config.emulate_precision_casts
    units = units_of(program)
    needed = needed_in_memory(program, units)
    units = inline(units, needed, elide_casts, program.hints)
    needed |= unread(units)
    graph = build_graph(program, units)
    fuser = Fuser(
        program,
        graph,
        lambda candidate: context.hooks.turret_fusion_score(context=context, candidate=candidate),
        context.config.max_fusion_size,
        frozenset(needed),
        elide_casts,
    )
    groups = fuser.run(units)
    roots = memory_roots(units)
    items = ordered(graph, groups)
    maker = StepMaker(graph.readers, fuser.groups, frozenset(needed), elide_casts)
    outputs = [output.name for output in program.outputs if isinstance(output, Ref)]
    kept = frozenset(program.constants).union(*(roots.get(name, (name,)) for name in outputs))
    pieces = pieces_of(items, graph, roots, maker.stored)
    cut = cut_for(context, program, target, [maker.steps(item) for item in items])
    targets = overwritable(program, roots)
    followers = [piece.followers for piece in pieces]
    orders = [tuple(minimize_peak_memory(pieces, fuser.sizes, kept)), tuple(range(len(items)))]
    if targets:
        declarations = program.declarations()
        stops = [n for n, item in enumerate(items) if any(may_stop(s, declarations) for s in maker.steps(item))]
        orders += [needed_first(order, followers, stops) for order in orders]
    plans = []
    for order in dict.fromkeys(orders):
        order = order if cut is None else cut.ordered(order, followers)
        steps = numbered([readers_first(s, targets) for number in order for s in maker.steps(items[number])])
        sections = () if cut is None else cut.sections(steps)
        memory = plan_memory(program, steps, roots, sections, targets)
        fewer, found = without_self_copies(steps, memory.overwrites(program))
        if found:
            steps = numbered(fewer)
            sections = () if cut is None else cut.sections(steps)
            memory = plan_memory(program, steps, roots, sections, targets, found)
        plans.append((steps, memory, sections))
    steps, memory, sections = min(plans, key=lambda plan: plan[1].peak_bytes or 0)
    return Schedule(program, steps, memory, tuple(fuser.decisions), sections)


def needed_in_memory(program: LoopProgram, units: list[Unit]) -> set[str]:
    """Tensors that outputs, extern calls, views, copies and scatters take from memory."""
    needed = {output.name for output in program.outputs if isinstance(output, Ref)}
    for unit in units:
        if isinstance(unit.statement, Extern | StridedView | CopyInto | Scatter):
            needed.update(unit.reads())
    return needed
