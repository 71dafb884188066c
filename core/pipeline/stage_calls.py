"""The stages of one compilation, called in their order.

Each is called through ``Pipeline.stage``, which times it, reports it, and turns a failure into a ``StageError`` that
names the stage and the plugin.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs
import pluggy
from torch import fx

from turret.errors import CodegenError, Stage, StageError, TurretError, warn
from turret.frames.trace_modes import autocast_disabled
from turret.hooks import plugin_manager
from turret.hooks.config import CORE, Config, updated
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for, devices_of
from turret.hooks.events import Event, stage_of
from turret.hooks.products import (
    BoxedCallable,
    CapturedGraph,
    GraphPhase,
    JointGraph,
    PartitionedGraph,
    Placement,
    Role,
    StageGraph,
    Target,
)
from turret.hooks.registration.blame import Owned, blaming
from turret.hooks.registration.plugin_order import in_order
from turret.hooks.signature import GraphSignature
from turret.pipeline.branches import Branch, branches_of
from turret.pipeline.failures.contracts import check_placement, check_plan, check_table, lowering_at_fault
from turret.pipeline.failures.failure_policy import FailurePolicy
from turret.pipeline.gc_pause import full_gc_paused
from turret.pipeline.graph_facts import output_strides, overwritten_inputs, target_of
from turret.pipeline.keys.executed_code import unrecorded
from turret.pipeline.keys.graph_cache import with_usable_cache
from turret.pipeline.rank_check import check_collectives
from turret.plan import Plan
from turret.storage.fork_safety import compiling

if TYPE_CHECKING:
    from turret.ir import LoopProgram, Schedule

_compile_ids = itertools.count(1)

_failed_observers: weakref.WeakKeyDictionary[pluggy.PluginManager, set[str]] = weakref.WeakKeyDictionary()
"""Names of observers that failed, of which that was said."""

SHOWN = 5
"""Calls that a hint names."""


def create_context(config: Config, manager: pluggy.PluginManager) -> CompileContext:
    """The context of one compilation."""
    failed = _failed_observers.setdefault(manager, set())

    def on_event(event: Event) -> None:
        try:
            with unrecorded():
                manager.hook.turret_event(event=event)
        except Exception as error:
            plugin = plugin_manager.plugin_of(manager, "turret_event", error)
            if plugin not in failed:
                failed.add(plugin)
                message = f"stage 'event' (plugin {plugin}) failed and was ignored: {type(error).__name__}: {error}"
                warn(f"an observer of Turret's events: {message}")

    devices = functools.partial(devices_of, manager)
    given = getattr(manager, "given", ())
    return CompileContext(config, manager.hook, next(_compile_ids), on_event, devices, given)


@attrs.frozen
class _Failures:
    """What ``Pipeline.failures`` gives.

    No generator: from Python 3.13 on the frame of one that raises another error keeps that of ``contextlib``, which
    holds the first error, and so a cycle of all frames below.
    """

    manager: pluggy.PluginManager
    stage: Stage
    hook: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, StageError):
            return
        fault = plugin_manager.plugin_at_fault(self.manager.hook, error)
        plugin = plugin_manager.plugin_of(self.manager, self.hook, error) if self.hook else fault or "turret"
        reason = str(error) if isinstance(error, CodegenError) else f"{type(error).__name__}: {error}"
        raise StageError(self.stage, plugin, reason) from error


class Pipeline:
    """The stages of one compilation, each called through ``stage``; graphs go from one to the next."""

    def __init__(self, manager: pluggy.PluginManager, config: Config) -> None:
        self.manager, self.config = manager, with_usable_cache(config)
        self.context = create_context(self.config, manager)
        self.policy = FailurePolicy(self.config, self.context)
        self.answered: dict[str, str] = {}
        """By stage, the plugin that made its latest product."""

    def failures(self, stage: Stage, hook: str = "") -> _Failures:
        """Turn whatever goes wrong inside into a ``StageError`` that names the stage and the plugin of ``hook``."""
        return _Failures(self.manager, stage, hook)

    @contextlib.contextmanager
    def compilation(self, name: str) -> Iterator[None]:
        """Tell observers when the compilation of one graph starts and ends, however it ends."""
        self.context.emit("compile_started", name=name)
        start = time.perf_counter()
        try:
            with compiling.here(), full_gc_paused(), devices_of(self.manager):
                yield
        finally:
            self.context.emit("compile_ended", name=name, seconds=time.perf_counter() - start)

    def stage(self, hook: str, name: str, **arguments: Any) -> Any:
        """Call a first-result hook of the pipeline; its product must not be None."""
        product, plugin = self.offer(hook, name, **arguments)
        if product is None:
            raise StageError(stage_of(hook), plugin, "no plugin took the graph")
        return product

    def offer(self, hook: str, named: str, /, **arguments: Any) -> tuple[Any, str]:
        """Call a first-result hook; its product, None where nobody took the graph, and whose it is."""
        stage, name = stage_of(hook), named
        self.context.emit("stage_started", stage=stage, name=name)
        start = time.perf_counter()
        with self.failures(stage, hook):
            product, self.answered[stage] = plugin_manager.first_result(
                self.manager, hook, {"context": self.context, **arguments}
            )
        self.context.emit("stage_ended", stage=stage, name=name, seconds=time.perf_counter() - start)
        if product is not None:
            self.context.emit("product", stage=stage, name=name, product=product)
        return product, self.answered[stage]

    def passes(self, phase: GraphPhase, module: fx.GraphModule) -> None:
        """Run every graph pass of a phase; the graph is as it was before the one that fails."""
        _passes().run_graph_passes(self.manager, self.context, phase, module)

    def asks_graph_compilers(self) -> bool:
        """Whether a plugin may take graphs to a compiler of its own."""
        return bool(self.manager.hook.turret_compile_graph.get_hookimpls())

    def runtime(
        self,
        name: str,
        signature: GraphSignature,
        saved: tuple[int, int],
        forward: BoxedCallable,
        backward: Callable[..., BoxedCallable | None],
    ) -> Callable[..., Any]:
        """Executables joined into what user code calls; ``saved``: how many tensors, and how many sizes."""
        function: Callable[..., Any] = self.stage(
            "turret_runtime",
            name,
            signature=signature,
            saved_tensors=saved[0],
            saved_sizes=saved[1],
            forward=forward,
            backward=backward,
        )
        return function

    def tables(self, hook: str, target: Target) -> Iterator[tuple[str, Mapping[Any, Callable[..., Any] | None]]]:
        """The tables that plugins give for a merged hook, each with its plugin, in the order that they are asked in."""
        stage = stage_of(hook)
        for plugin, table in plugin_manager.all_results(
            self.manager, hook, {"context": self.context, "target": target}
        ):
            if plugin not in plugin_manager.BUILTINS:
                check_table(stage, plugin, table)
            yield plugin, table

    def decompositions(self, target: Target) -> dict[Any, Callable[..., Any]]:
        """All decomposition tables merged: a keep wins, then the plugin that is asked first."""
        merged: dict[Any, Callable[..., Any]] = {}
        kept: set[Any] = set()
        with self.failures("decompositions", "turret_decompositions"):
            for plugin, table in self.tables("turret_decompositions", target):
                for op, function in table.items():
                    if function is None:
                        kept.add(op)
                    elif op not in merged:
                        merged[op] = function if plugin in plugin_manager.BUILTINS else Owned(function, plugin)
        return {op: function for op, function in merged.items() if op not in kept}

    def lowerings(self, target: Target) -> Mapping[Any, Callable[..., Any]]:
        """All lowering tables merged; the plugin that is asked first wins."""
        merged: dict[Any, Callable[..., Any]] = {}
        with self.failures("lowerings", "turret_lowerings"):
            for plugin, table in self.tables("turret_lowerings", target):
                for op, function in table.items():
                    if op not in merged:
                        lowering = cast(Callable[..., Any], function)  # None stands in tables of decompositions alone
                        merged[op] = lowering if plugin in plugin_manager.BUILTINS else Owned(lowering, plugin)
        return merged

    def traced(self, captured: CapturedGraph, decompositions: Mapping[Any, Callable[..., Any]]) -> JointGraph:
        """The functional graph of a captured one, under the modes of the calling thread."""
        if plugin_manager.is_foreign(self.manager, "turret_graph_pass"):
            with self.failures("graph_pass"):
                _passes().give_values(captured)
        self.passes("captured", captured.module)
        joint: JointGraph = self.stage("turret_joint", captured.name, captured=captured, decompositions=decompositions)
        return joint

    def simplified(self, joint: JointGraph) -> JointGraph:
        """A functional graph, rewritten by the passes of its phase."""
        with autocast_disabled():
            self.passes("joint", joint.module)
        return joint

    def partitioned(self, joint: JointGraph) -> PartitionedGraph:
        """Forward and backward of a functional graph."""
        with autocast_disabled():
            parts: PartitionedGraph = self.stage("turret_partition", joint.name, joint=joint)
        from turret.graph.partitioning import verify  # brings sympy, which a warm start does without

        self.verify("partition", functools.partial(verify, joint), parts)
        return parts

    def wrapped(self, function: BoxedCallable, role: Role, partitioned: PartitionedGraph | None) -> BoxedCallable:
        """An executable in the wrappers of all plugins; ``partitioned`` is None for one that was stored."""
        check_collectives(function)
        for wrap in in_order(self.manager, "turret_wrap_runtime"):
            arguments = {"context": self.context, "function": function, "partitioned": partitioned, "role": role}
            with self.failures("wrap_runtime"), blaming(wrap.plugin_name):
                wrapped = wrap.function(*(arguments[a] for a in wrap.argnames))
            function = function if wrapped is None else wrapped
        return function

    def stage_graph(
        self, partitioned: PartitionedGraph, role: Role, name: str, target: Target, static_inputs: frozenset[int]
    ) -> StageGraph:
        """One graph of the partition as the stages after it take it, rewritten by the passes of its phase."""
        module = partitioned.graph_of(role)
        self.passes("backward" if role == "backward" else "forward", module)
        return StageGraph(
            module=module,
            role=role,
            target=target,
            output_strides=output_strides(partitioned, role),
            static_inputs=static_inputs,
            visible_outputs=partitioned.num_forward_outputs if role == "forward" else None,
            name=name,
            overwritten={} if role == "backward" else overwritten_inputs(partitioned.signature),
        )

    def plan_graph(self, graph: StageGraph) -> Plan:
        """One graph through place, lower, schedule and codegen."""
        return self.plan_placed(*self.placed(graph))

    def plan_placed(self, graph: StageGraph, placement: Placement) -> Plan:
        """A placed graph through lower, schedule and codegen."""
        program = self.lowered(graph, placement)
        return self.generated(self.scheduled(program, graph.target), graph.target)

    def placed(self, graph: StageGraph, placement: Placement | None = None) -> tuple[StageGraph, Placement]:
        """A graph and where each of its calls runs."""
        from turret.graph.ops.memory_ops import count_from_tensors

        count_from_tensors(graph.module.graph)
        self.context.emit("product", stage="graph_pass", name=graph.name, product=graph)
        if plugin_manager.is_foreign(self.manager, "turret_lowerings"):
            self.lowerings(graph.target)  # what is no table is refused before placement asks for it
        if placement is None:
            placement = self.stage("turret_place", graph.name, graph=graph)
            self.verify("place", functools.partial(check_placement, graph), placement)
        if plugin_manager.is_foreign(self.manager, "turret_graph_pass"):
            place = functools.partial(self.stage, "turret_place", graph.name, graph=graph)
            placement = _passes().run_placed_passes(self.manager, self.context, graph, placement, place)
        self.hint_at_eager_calls(graph.name, placement)
        return graph, placement

    def lowered(self, graph: StageGraph, placement: Placement) -> LoopProgram:
        """A graph as a loop program, verified; graphs that calls of control flow hold are plans by then."""
        for branch in branches_of(graph.module):
            self.plan_branch(graph, branch)
        lowerings = self.lowerings(graph.target)
        program: LoopProgram = self.stage(
            "turret_lower", graph.name, graph=graph, placement=placement, lowerings=lowerings
        )
        from turret.ir import verify  # expressions of sizes are sympy's, whose import a warm start does without

        self.verify("lower", verify, program, functools.partial(lowering_at_fault, graph, lowerings))
        rewritten: LoopProgram = _passes().run_ir_passes(self.manager, self.context, "lowered", program, graph.target)
        return rewritten

    def scheduled(self, program: LoopProgram, target: Target) -> Schedule:
        """The kernels of a loop program, verified."""
        schedule = self.stage("turret_schedule", program.name, program=program, target=target)
        from turret.ir import verify

        self.verify("schedule", verify, schedule)
        rewritten: Schedule = _passes().run_ir_passes(self.manager, self.context, "scheduled", schedule, target)
        return rewritten

    def generated(self, schedule: Schedule, target: Target) -> Plan:
        """The plan that runs a schedule."""
        plan: Plan = self.stage("turret_codegen", schedule.program.name, schedule=schedule, target=target)
        self.verify("codegen", check_plan, plan)
        return attrs.evolve(plan, arch=target.arch) if plan.device == target.device else plan

    def plan_branch(self, graph: StageGraph, branch: Branch) -> None:
        """Compile a graph that a call of control flow holds; where that fails it runs call by call, on record."""
        name, reason = f"{graph.name}.{branch.name}", branch.why_not_planned()
        if not reason:
            module = copy.deepcopy(branch.module)
            try:
                inner = self.without_capture()
                inner.passes("joint", module)
                inner.passes("forward", module)
                branch.replace(inner.plan_graph(branch.graph(module, graph.target, name)))
                return
            except (StageError, TurretError) as error:
                reason = str(error)
        message = f"{name} of {branch.op} runs call by call: {reason}"
        self.context.emit("perf_hint", stage="place", name=name, message=message)

    def without_capture(self) -> Pipeline:
        """The same stages, which cut nothing for graph capture: what control flow runs is not recorded."""
        made = copy.copy(self)
        options = getattr(self.manager, "options", CORE)
        off = {"cudagraphs": False, "cudagraph_after_calls": 0, "cudagraph_min_kernels": 0}
        config = updated(self.config, {name: value for name, value in off.items() if name in options}, options)
        made.config, made.context = config, attrs.evolve(self.context, config=config)
        made.policy = FailurePolicy(made.config, made.context)
        return made

    def hint_at_eager_calls(self, name: str, placement: Placement) -> None:
        """Calls that no kernel was generated for split what could have been fused."""
        eager = [f"{node}: {p.reason}" for node, p in placement.nodes.items() if p.where == "eager"]
        if eager:
            shown = "; ".join(eager[:SHOWN]) + ("; ..." if len(eager) > SHOWN else "")
            message = f"{len(eager)} of {len(placement.nodes)} calls of {name} run eagerly, one by one: {shown}"
            self.context.emit("perf_hint", stage="place", name=name, message=message)

    def without_kernels(self, captured: CapturedGraph) -> bool:
        """Whether no code generator serves a graph's device, on record: it then runs as captured, call by call."""
        kind = target_of(captured).device_type
        with self.failures("device", "turret_device"):
            if device_for(kind).kernel_languages or self.asks_graph_compilers():
                return False
        message = f"no plugin makes kernels for the device type {kind}: graphs on it run call by call"
        self.context.emit("fallback", stage="device", name=captured.name, message=message)
        warn(f"Turret runs a graph eagerly: {message}; a plugin with turret_device and turret_codegen can make them")
        return True

    def verify(
        self, stage: Stage, check: Callable[[Any], None], product: Any, whose: Callable[[Any], str] = lambda error: ""
    ) -> None:
        """Hold a product against its contract; whoever made it is to blame, or whom ``whose`` names."""
        try:
            check(product)
        except TurretError as error:
            raise StageError(stage, whose(error) or self.answered[stage], str(error)) from error


def _passes() -> Any:
    """The module that runs passes, which a warm start does without."""
    from turret.pipeline import passes

    return passes
