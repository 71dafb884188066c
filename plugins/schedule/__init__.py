"""The built-in scheduler: inline, fuse by saved bytes, order, and plan memory."""

from __future__ import annotations

from typing import Any

from turret.hookspecs import hookimpl
from turret.ir import CopyInto, Extern, FusionCandidate, LoopProgram, Ref, Scatter, Schedule, StridedView
from turret.ir.schedule import Kernel, Step, Store
from turret.plugins.schedule.fuse import Fuser
from turret.plugins.schedule.graph import build_graph, memory_roots, ordered
from turret.plugins.schedule.groups import Group
from turret.plugins.schedule.inline import inline
from turret.plugins.schedule.kernels import kernel_name, kernel_of
from turret.plugins.schedule.memory import plan_memory
from turret.plugins.schedule.units import Unit, units_of


@hookimpl
def turret_schedule(context: Any, program: LoopProgram) -> Schedule:
    """Fuse a program's definitions into kernels and put all steps in order."""
    elide_casts = not context.config.emulate_precision_casts
    needed = needed_in_memory(program)
    units = inline(units_of(program), needed, elide_casts)
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
    steps = _steps(ordered(graph, groups), fuser, needed)
    memory = plan_memory(program, steps, memory_roots(units))
    return Schedule(program, steps, memory, tuple(fuser.decisions))


@hookimpl
def turret_fusion_score(candidate: FusionCandidate) -> float:
    """Bytes of memory traffic saved."""
    return float(candidate.saved_bytes or 0)


def needed_in_memory(program: LoopProgram) -> set[str]:
    """Tensors that outputs, extern calls, views, copies and scatters take from memory."""
    needed = {output.name for output in program.outputs if isinstance(output, Ref)}
    for unit in units_of(program):
        if isinstance(unit.statement, Extern | StridedView | CopyInto | Scatter):
            needed.update(unit.reads())
    return needed


def _steps(order: list[Group | Unit], fuser: Fuser, needed: set[str]) -> tuple[Step, ...]:
    steps: list[Step] = []
    kernels = 0
    for item in order:
        if isinstance(item, Unit):
            if isinstance(item.statement, Scatter):
                steps += _scatter(item.statement, kernels)
                kernels += 1
            else:
                steps.append(item.statement)
            continue
        names = {m.unit.tensor.name for m in item.members}
        stored = {n for n in names if n in needed or _read_elsewhere(n, item, fuser)}
        origins = tuple(dict.fromkeys(o for m in item.members for o in m.unit.statement.origins))
        steps.append(kernel_of(item, stored, kernel_name(kernels, origins), fuser.elide_casts))
        kernels += 1
    return tuple(steps)


def _read_elsewhere(name: str, group: Group, fuser: Fuser) -> bool:
    return any(fuser.groups.get(n) is not group for n in fuser.graph.readers.get(name, ()))


def _scatter(statement: Scatter, number: int) -> list[Step]:
    """Two kernels: the copy of the initial values, then the scatter on top of them."""
    from turret.ir import Var, load

    loops = tuple(Var(f"i{k}", extent) for k, extent in enumerate(statement.tensor.shape))
    coords = tuple(v.index for v in loops)
    name = statement.tensor.name
    initial = Store(name, coords, load(statement.initial, coords, statement.tensor.dtype))
    write = Store(name, statement.coords, statement.expr, statement.mode, statement.condition)
    label = kernel_name(number, statement.origins)
    return [
        Kernel(f"{label}_init", loops, (), (initial,), statement.origins),
        Kernel(label, statement.variables, (), (write,), statement.origins, (statement.source,)),
    ]
