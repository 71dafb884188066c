"""The scheduler: inline, fuse by saved bytes, order, and plan memory."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from turret.hooks.context import CompileContext
from turret.hooks.products import Target
from turret.ir import (
    CopyInto,
    Extern,
    LoopProgram,
    MemoryPlan,
    Ref,
    Scatter,
    Schedule,
    ScheduleSection,
    Step,
    StridedView,
)
from turret.plugins.schedule.attention import choose_attention
from turret.plugins.schedule.fusion.column_slices import split_into_slices
from turret.plugins.schedule.fusion.fuse import Fuser
from turret.plugins.schedule.fusion.graph import build_graph, memory_roots, ordered
from turret.plugins.schedule.fusion.inline import inline
from turret.plugins.schedule.fusion.kernels import StepMaker, numbered
from turret.plugins.schedule.fusion.row_factors import fold_row_factors
from turret.plugins.schedule.fusion.scattered import Joiner
from turret.plugins.schedule.fusion.units import Unit, units_of, unread
from turret.plugins.schedule.in_place import may_stop, overwritable, readers_first, without_self_copies
from turret.plugins.schedule.layouts import choose_layouts
from turret.plugins.schedule.memory import plan_memory
from turret.plugins.schedule.order import minimize_peak_memory, needed_first, pieces_of
from turret.plugins.schedule.products import choose_products
from turret.plugins.schedule.sections import Cut, cut_for


def schedule(context: CompileContext, program: LoopProgram, target: Target | None = None) -> Schedule:
    """Choose how attention and products are computed, fuse definitions into kernels and put all steps in order."""
    program, choices = choose_attention(context, program, target, _schedule)
    program, products = choose_products(context, program, target, _schedule)
    choices += products
    made = _schedule(context, program, target)
    return attrs.evolve(made, choices=choices) if choices else made


def _schedule(context: CompileContext, program: LoopProgram, target: Target | None) -> Schedule:
    elide_casts = not context.config.emulate_precision_casts
    units = units_of(program)
    needed = needed_in_memory(program, units)
    laid_out = choose_layouts(program, needed, elide_casts)
    if laid_out is not program:
        program, units = laid_out, units_of(laid_out)
    units = split_into_slices(inline(units, needed, elide_casts, program.hints), needed, elide_casts)
    units = fold_row_factors(units, needed)
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
    planner = _Planner(program, roots, targets, cut)
    plans = []
    for order in dict.fromkeys(orders):
        order = order if cut is None else cut.ordered(order, followers)
        plans.append(planner.plan([step for number in order for step in maker.steps(items[number])]))
    steps, memory, sections = min(plans, key=lambda plan: plan[1].peak_bytes or 0)
    return Schedule(program, steps, memory, tuple(fuser.decisions), sections)


@attrs.frozen
class _Planner:
    """Plans memory for the steps of a program, which have to be in some order.

    ``roots``: the tensors in whose memory each one lies; ``targets``: outputs that may be made in the memory of an
    input; ``cut``: what is cut for graph capture, if anything is.
    """

    program: LoopProgram
    roots: Mapping[str, frozenset[str]]
    targets: Mapping[str, str]
    cut: Cut | None

    def plan(self, steps: list[Step]) -> tuple[tuple[Step, ...], MemoryPlan, tuple[ScheduleSection, ...]]:
        """Steps with their numbers, their memory and their sections; without copies of what lies in place by then."""
        made = numbered([readers_first(step, self.targets) for step in steps])
        sections = self._sections(made)
        memory = plan_memory(self.program, made, self.roots, sections, self.targets)
        fewer, found = without_self_copies(made, memory.overwrites(self.program))
        if found:
            joiner = Joiner(self.program.declarations(), self.roots, found)
            made = numbered(joiner.joined(fewer))
            sections = self._sections(made)
            memory = plan_memory(self.program, made, self.roots, sections, self.targets, found)
        return made, memory, sections

    def _sections(self, steps: tuple[Step, ...]) -> tuple[ScheduleSection, ...]:
        return () if self.cut is None else self.cut.sections(steps)


def needed_in_memory(program: LoopProgram, units: list[Unit]) -> set[str]:
    """Tensors that outputs, extern calls, views, copies and scatters take from memory."""
    needed = {output.name for output in program.outputs if isinstance(output, Ref)}
    for unit in units:
        if isinstance(unit.statement, Extern | StridedView | CopyInto | Scatter):
            needed.update(unit.reads())
    return needed
