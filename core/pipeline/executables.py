"""One graph of a partition, compiled: by the stages from place to codegen, or by a plugin's own compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from turret.frames.trace_modes import autocast_disabled
from turret.hooks.products import BoxedCallable, CapturedGraph, PartitionedGraph, Placement, Role, StageGraph, Target
from turret.pipeline.graph_facts import saved_inputs
from turret.pipeline.stage_calls import Pipeline
from turret.plan import Plan
from turret.plan.executor import load

if TYPE_CHECKING:
    from turret.pipeline.graph_compilers.assembly import Assembly

    Executable = Plan | Assembly


def executable(
    pipeline: Pipeline, partitioned: PartitionedGraph, role: Role, target: Target, captured: CapturedGraph
) -> tuple[Executable, BoxedCallable]:
    """One graph of the partition as what is stored of it, and as a callable.

    It goes through place, lower, schedule and codegen; what a plugin takes to a compiler of its own after place goes
    no further.
    """
    name = f"{partitioned.name}.{role}"
    static_inputs = captured.static_inputs if role != "backward" else frozenset()
    steady = captured.static_inputs | captured.steady_inputs
    if role == "backward":
        steady = saved_inputs(partitioned, steady)
    with autocast_disabled():
        graph, placement = pipeline.placed(pipeline.stage_graph(partitioned, role, name, target, static_inputs))
        elsewhere = _compiled_elsewhere(pipeline, graph, placement)
        plan = None if elsewhere is not None else pipeline.plan_placed(graph, placement)
    made: tuple[Executable, BoxedCallable]
    if plan is None:
        assert elsewhere is not None
        made = elsewhere
    else:
        visible = partitioned.num_forward_outputs if role == "forward" else None
        plan = attrs.evolve(plan, static_inputs=tuple(sorted(steady)), visible_outputs=visible)
        with pipeline.failures("load"):
            made = plan, load(plan, pipeline.context.store("load"))
    pipeline.context.emit("product", stage="load", name=name, product=made[1])
    return made[0], pipeline.wrapped(made[1], role, partitioned)


def _compiled_elsewhere(
    pipeline: Pipeline, graph: StageGraph, placement: Placement
) -> tuple[Assembly, BoxedCallable] | None:
    """A placed graph, or some of its clusters, in the hands of plugins' compilers; None where nobody takes it."""
    if not pipeline.asks_graph_compilers():
        return None
    from turret.pipeline.graph_compilers.ask import compile_placed

    with pipeline.failures("compile_graph"):
        return compile_placed(pipeline, graph, placement)
