"""The hook ``turret_compile_graph``, asked for a graph at each of its levels; what a plugin answers, made to fit."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import CacheError, PluginError, StageError
from turret.frames.eager_graphs import eagerly
from turret.graph.op_traits import is_mutating_op, output_nodes
from turret.hooks.devices import HOST
from turret.hooks.products import BoxedCallable, CapturedGraph, Placement, Scope, StageGraph
from turret.pipeline.graph_compilers.assembly import Assembly, Part, assembled, eager_facts, outer_nodes, text_of
from turret.pipeline.graph_compilers.clusters import Cluster, clustered
from turret.pipeline.graph_compilers.layouts import interface_of
from turret.pipeline.graph_compilers.loading import HOOK, STAGE, boxed, guarded
from turret.pipeline.graph_facts import target_of
from turret.pipeline.stage_calls import Pipeline
from turret.plan.executor import load
from turret.storage.codec import dumps
from turret.storage.source_lines import new_graph_module

Made = tuple[Assembly, BoxedCallable]
"""What is stored of a graph, and its function."""


# ------------------------------------------------ as captured


def compile_captured(pipeline: Pipeline, captured: CapturedGraph, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """A captured graph in the hands of a plugin that takes it before autograd is traced; None where nobody does."""
    wants = captured.grad_enabled and any(getattr(v, "requires_grad", False) for v in captured.example_inputs)
    target = target_of(captured)
    # Who looks at sizes of the call's own tensors would take those that change for fixed ones.
    is_static = not any(map(_has_symbols, captured.example_inputs))
    with _random_state_kept(target):
        function, plugin = _ask(
            pipeline,
            captured.name,
            module=_copy(captured.module),
            example_inputs=list(inputs if is_static else captured.example_inputs),
            scope="captured",
            role="forward" if wants else "inference",
            placement=None,
            target=target,
        )
    if function is None:
        return None
    count = len(output_nodes(captured.module.graph))

    def checked(*args: Any) -> Any:
        results = function(*args)
        if not isinstance(results, (tuple, list)) or len(results) != count:
            raise PluginError(_wrong_count(captured.name, plugin, results, count))
        return results

    return eagerly(captured.module, checked)


def _has_symbols(value: Any) -> bool:
    sizes: Any = (value,)
    if isinstance(value, torch.Tensor):
        placed = (*value.stride(), value.storage_offset()) if value.layout is torch.strided else ()
        sizes = (*value.shape, *placed)
    return any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes)


def _wrong_count(name: str, plugin: str, results: Any, count: int) -> str:
    shown = f"a {type(results).__name__}" + (f" of {len(results)}" if isinstance(results, (tuple, list)) else "")
    return f"{name}, compiled by {plugin}, returned {shown}; expected a tuple or list of {count}"


@contextlib.contextmanager
def _random_state_kept(target: Any) -> Iterator[None]:
    """Within it a plugin may run a graph to try it: the program's random numbers stay those that it would draw."""
    of_device = {"devices": [target.index or 0], "device_type": target.device_type}
    with torch.random.fork_rng(**{"devices": []} if target.device_type in (HOST.type, "meta") else of_device):
        yield


# ------------------------------------------------ as placed


def compile_placed(pipeline: Pipeline, graph: StageGraph, placement: Placement) -> Made | None:
    """A placed graph in the hands of plugins, as a whole or in clusters; None where nobody takes any of it."""
    any_stride = graph.role == "backward"
    interface = interface_of(graph.module, graph.output_strides, any_stride)
    visible = 0 if any_stride else len(interface.outputs) if graph.visible_outputs is None else graph.visible_outputs
    part = _offer(pipeline, graph.name, graph.module, "graph", graph, placement, interface, ())
    if part is not None:
        outer, parts = None, [part]
    else:
        split = clustered(graph.module, placement)
        taken = [_offer_cluster(pipeline, graph, cluster) for cluster in split.clusters]
        if not any(taken):
            return None
        outer = split.module
        parts = [
            made or _by_turret(pipeline, graph, cluster) for made, cluster in zip(taken, split.clusters, strict=True)
        ]
    run = assembled(graph.name, outer, parts, interface, visible)
    return _as_data(graph, outer, [part for part, _ in parts], interface, visible), run


def _offer_cluster(pipeline: Pipeline, graph: StageGraph, cluster: Cluster) -> tuple[Part, BoxedCallable] | None:
    strides = [None] * len(output_nodes(cluster.module.graph))
    interface = interface_of(cluster.module, strides)
    name = f"{graph.name}.{cluster.name}"
    return _offer(pipeline, name, cluster.module, "cluster", graph, cluster.placement, interface, cluster.eager_inputs)


def _offer(
    pipeline: Pipeline,
    name: str,
    module: fx.GraphModule,
    scope: Scope,
    graph: StageGraph,
    placement: Placement,
    interface: Any,
    eager_inputs: tuple[int, ...],
) -> tuple[Part, BoxedCallable] | None:
    """One graph offered to all plugins; its part and function where one takes it."""
    handed = _copy(module)
    function, plugin = _ask(
        pipeline,
        name,
        module=handed,
        example_inputs=[node.meta.get("val") for node in handed.graph.find_nodes(op="placeholder")],
        scope=scope,
        role=graph.role,
        placement=placement,
        target=graph.target,
    )
    if function is None:
        return None
    part = Part(name.rpartition(".")[2], interface, eager_inputs, plugin)
    save = getattr(function, "save", None)
    if callable(save):
        with pipeline.failures(STAGE, HOOK):
            saved = save()
            if not isinstance(saved, bytes):
                raise StageError(STAGE, plugin, f"save() returned a {type(saved).__name__}; expected bytes")
        part = attrs.evolve(part, saved=text_of(saved))
    writes = any(is_mutating_op(node.target) for node in module.graph.nodes)
    return part, guarded(pipeline, name, plugin, boxed(function), None if writes else module)


def _by_turret(pipeline: Pipeline, graph: StageGraph, cluster: Cluster) -> tuple[Part, BoxedCallable]:
    """A cluster that no plugin took: lowered, scheduled and compiled as a graph by itself."""
    values = [node.meta.get("val") for node in output_nodes(cluster.module.graph)]
    strides = tuple(tuple(v.stride()) if isinstance(v, torch.Tensor) else None for v in values)
    inner = StageGraph(
        module=cluster.module,
        role=graph.role,
        target=graph.target,
        output_strides=strides,
        visible_outputs=0,
        name=f"{graph.name}.{cluster.name}",
    )
    plan = pipeline.plan_placed(inner, cluster.placement)
    interface = interface_of(cluster.module, [None] * len(values))
    part = Part(cluster.name, interface, cluster.eager_inputs, plan=plan)
    with pipeline.failures("load"):
        return part, load(plan, pipeline.context.store("load"))


def _ask(pipeline: Pipeline, name: str, **arguments: Any) -> tuple[Callable[..., Any] | None, str]:
    """What the first plugin that takes a graph made of it, and that plugin's name."""
    function, plugin = pipeline.offer(HOOK, name, name=name, **arguments)
    if function is not None and not callable(function):
        raise StageError(STAGE, plugin, f"{name} came back as a {type(function).__name__}; expected a callable")
    return function, plugin


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """A graph that a plugin may edit; what it holds is the same."""
    return new_graph_module(module, copy.deepcopy(module.graph), type(module).__name__)


# ------------------------------------------------ as plain data


def _as_data(
    graph: StageGraph, outer: fx.GraphModule | None, parts: Sequence[Part], interface: Any, visible: int
) -> Assembly:
    """An assembly as plain data; it says so where a part or a call cannot be written."""
    draws, untrusted = eager_facts(outer)
    made = Assembly(
        name=graph.name,
        device=graph.target.device,
        parts=tuple(parts),
        interface=interface,
        visible=visible,
        draws=draws,
        untrusted=untrusted,
        arch=graph.target.arch,
    )
    unsaved = [part.compiler for part in parts if part.compiler and not part.saved]
    if unsaved:
        return attrs.evolve(made, unstored=f"what {unsaved[0]} made has no save()")
    try:
        nodes, constants = ("", {}) if outer is None else outer_nodes(outer)
        dumps(constants)
    except CacheError as error:
        return attrs.evolve(made, unstored=str(error))
    return attrs.evolve(made, nodes=nodes, constants=constants)
