"""The pipeline driver: one captured graph through every stage to a callable.

Each stage is called through ``Pipeline.stage``, which times it, reports it, and turns a failure into a
``StageError`` that names the stage and the plugin.  What happens then is the policy of ``on_error``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pluggy
import torch
from torch import fx

from turret.errors import (
    CacheError,
    CodegenError,
    PluginError,
    StageError,
    TurretError,
    UnsupportedError,
    VerificationError,
    warn,
)
from turret.frames.trace_modes import TraceModes, autocast_disabled, eagerly
from turret.hooks import plugin_manager
from turret.hooks.blame import Owned, blaming, owner
from turret.hooks.config import CORE, Config, updated
from turret.hooks.context import CompileContext
from turret.hooks.devices import HOST, device_for, devices_of
from turret.hooks.events import Event
from turret.hooks.plugin_order import in_order
from turret.hooks.products import (
    BoxedCallable,
    CapturedGraph,
    JointGraph,
    NodePlacement,
    PartitionedGraph,
    Placement,
    StageGraph,
    Target,
)
from turret.pipeline import stored_graph
from turret.pipeline.branches import Branch, branches_of
from turret.pipeline.executed_code import recorded, unrecorded
from turret.pipeline.fake_mismatch import fallback_on_fake_mismatch, trusts_fake_implementations
from turret.pipeline.gc_pause import full_gc_paused
from turret.pipeline.graph_cache import Artifact, GraphCache, Unstable, devices_in, graph_key, with_usable_cache
from turret.pipeline.op_code import runs_own_code, traced_code
from turret.plan import Plan, SizeText, size_text
from turret.plan.aliasing import fallback_on_alias_mismatch, sharing_check, writes_inputs
from turret.plan.executor import fits_device, load
from turret.plan.sizes import compile_sizes
from turret.storage.fork_safety import Lock, compiling
from turret.storage.libraries import forget_library

if TYPE_CHECKING:
    from turret.graph.partitioning.partial import SavedValues
    from turret.ir import LoopProgram, Schedule
    from turret.pipeline.graph_compilers.assembly import Assembly

    Executable = Plan | Assembly

_compile_ids = itertools.count(1)

Given = tuple[int, ...] | None
"""Positions of the graph outputs that a backward is given gradients of; None: of all that are differentiable."""

_failed_observers: weakref.WeakKeyDictionary[pluggy.PluginManager, set[str]] = weakref.WeakKeyDictionary()
"""Names of observers that failed, of which that was said."""

_SHOWN = 5
"""Calls that a hint names."""

_WITHOUT_A_SAY = {"turret_event", "turret_guard_filter", "turret_capture", "turret_options"}
"""Hooks that do not change what one captured graph compiles to."""


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

    return CompileContext(config, manager.hook, next(_compile_ids), on_event)


def compile_captured(manager: pluggy.PluginManager, config: Config, captured: CapturedGraph) -> Callable[..., Any]:
    """Compile one captured graph to a callable over its flat inputs, by the failure policy of ``config``."""
    return _compile_with_key(manager, config, captured, False)[0]


def _compile_with_key(
    manager: pluggy.PluginManager, config: Config, captured: CapturedGraph, keep_graph: bool
) -> tuple[Callable[..., Any], str | None]:
    """The callable of one captured graph, and a key by which ``Compiler.stored`` finds it again (None: it cannot)."""
    pipeline = Pipeline(manager, config)
    try:
        with pipeline.failures("pipeline"), devices_of(manager):
            return pipeline.compile(captured, keep_graph)
    except StageError as error:
        if config.on_error == "raise":
            raise
        pipeline.report_fallback(error)
        return eagerly(captured.module), None


class Pipeline:
    """The stages of one compilation, each called through ``stage``; graphs go from one to the next."""

    def __init__(self, manager: pluggy.PluginManager, config: Config) -> None:
        self.manager, self.config = manager, with_usable_cache(config)
        self.context = create_context(self.config, manager)
        self.answered: dict[str, str] = {}
        """By stage, the plugin that made its latest product."""

    def report_fallback(self, error: StageError) -> None:
        self.context.emit("fallback", stage=error.stage, message=str(error))
        warn(
            f"Turret runs a graph eagerly: {error}\n"
            '  to reproduce: on_error="raise" in the options (or TURRET_ON_ERROR=raise) gives the full traceback, '
            "debug_dir=<folder> (TURRET_DEBUG_DIR) the products of the stages before"
        )

    def report_zeros(self, name: str, reason: str) -> None:
        """Say that a backward takes zeros for gradients that did not come."""
        message = f"zeros stand for gradients that do not reach {name}, and may meet infinities there: {reason}"
        self.context.emit("fallback", stage="backward", name=name, message=message)
        warn(f"Turret runs a backward that eager would leave out in part: {message}")

    def past_limit(self, backwards: int, name: str) -> bool:
        """Whether a graph has as many backwards as it may: further ones are not worth compiling, which is said."""
        limit = getattr(self.config, "recompile_limit", None)
        if limit is None or backwards < limit:
            return False
        message = f"{limit} backwards were compiled for sets of gradients (recompile_limit); {name} runs call by call"
        self.context.emit("fallback", stage="backward", name=name, message=message)
        warn(f"Turret runs a graph eagerly: {message}")
        return True

    @contextlib.contextmanager
    def failures(self, stage: str, hook: str = "") -> Iterator[None]:
        """Turn whatever goes wrong inside into a ``StageError`` that names the stage and the plugin of ``hook``."""
        try:
            yield
        except StageError:
            raise
        except Exception as error:
            fault = plugin_manager.plugin_at_fault(self.manager.hook, error)
            plugin = plugin_manager.plugin_of(self.manager, hook, error) if hook else fault or "turret"
            reason = str(error) if isinstance(error, CodegenError) else f"{type(error).__name__}: {error}"
            raise StageError(stage, plugin, reason) from error

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
            raise StageError(hook.removeprefix("turret_"), plugin, "no plugin took the graph")
        return product

    def offer(self, hook: str, named: str, /, **arguments: Any) -> tuple[Any, str]:
        """Call a first-result hook; its product, None where nobody took the graph, and whose it is."""
        stage, name = hook.removeprefix("turret_"), named
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

    def passes(self, phase: str, module: fx.GraphModule) -> None:
        """Run every graph pass of a phase; the graph is as it was before the one that fails."""
        _passes().run_graph_passes(self.manager, self.context, phase, module)

    def compile(self, captured: CapturedGraph, keep_graph: bool) -> tuple[Callable[..., Any], str | None]:
        """The callable of one captured graph, from the cache where an equal graph was compiled before.

        With it comes the key under which all of it is stored, or None.  ``keep_graph``: store the graph, too.
        """
        with self.compilation(captured.name):
            inputs, captured = captured.real_inputs, attrs.evolve(captured, real_inputs=())
            self.context.emit("product", stage="capture", name=captured.name, product=captured)
            if self.asks_graph_compilers():
                from turret.pipeline.graph_compilers.ask import compile_captured

                taken = compile_captured(self, captured, inputs or captured.example_inputs)
                if taken is not None:
                    return taken, None
            del inputs
            if self.without_kernels(captured):
                return eagerly(captured.module), None
            with self.failures("graph_cache"):
                cache = self.graph_cache()
                key = None if cache is None else self.key_of(captured)
                stored, forward = (None, None) if key is None else self.loaded(cache, key, "forward")
            kept = keep_graph and key is not None and self.keep_graph(cache, key, captured)
            work = _Graph(self, captured, cache if key is not None else None, key)
            self.context.emit("cache_miss" if forward is None else "cache_hit", stage="graph", name=captured.name)
            if forward is None:
                stored, forward = work.compile_forward()
            function = self.runtime(captured.name, stored, forward, functools.partial(work.backward, stored))
        alone = work.cache is not None
        check = sharing_check(stored.signature, captured.example_inputs, captured.static_inputs)
        if check is not None:
            report = functools.partial(self.context.emit, "fallback", stage="runtime", name=captured.name)
            function, alone = (
                fallback_on_alias_mismatch(function, eagerly(captured.module), check, report),
                alone and kept,
            )
        if trusts_fake_implementations(stored.plan):
            alone = False
            if self.config.on_error == "fallback":
                function = fallback_on_fake_mismatch(
                    function, eagerly(captured.module), stored.plan, self.report_fallback
                )
        return function, key if alone else None

    def asks_graph_compilers(self) -> bool:
        """Whether a plugin may take graphs to a compiler of its own."""
        return bool(self.manager.hook.turret_compile_graph.get_hookimpls())

    def key_of(self, captured: CapturedGraph) -> str | None:
        """The key of a graph; None, on record, for one that has none."""
        try:
            return graph_key(captured, self.settings())
        except Unstable as error:
            message = f"{captured.name} is compiled in every process: it has a part without a stable name ({error})"
            self.context.emit("perf_hint", stage="graph_cache", name=captured.name, message=message)
            return None

    def keep_graph(self, cache: GraphCache, key: str, captured: CapturedGraph) -> bool:
        """Store a graph, if what is read back from what is written is the same graph; whether it is stored."""
        if cache.get_graph(key) is not None:
            return True
        with self.failures("graph_cache"):
            graph = stored_graph.stored(captured)
            if graph is None:
                return False
            again = stored_graph.restored(graph, captured.name)
            same = target_of(again) == target_of(captured) and self.key_of(again) == key
            return same and cache.put_graph(key, graph)

    def runtime(
        self, name: str, stored: Artifact, forward: BoxedCallable, backward: Callable[..., BoxedCallable | None]
    ) -> Callable[..., Any]:
        """Executables joined into what user code calls."""
        return self.stage(
            "turret_runtime",
            name,
            signature=stored.signature,
            saved_tensors=stored.saved_tensors,
            saved_sizes=stored.saved_sizes,
            forward=forward,
            backward=backward,
        )

    def stored(self, key: str, name: str) -> Callable[..., Any] | None:
        """The callable of a graph that another process compiled under ``key``; None where a part of it is missing."""
        with self.failures("graph_cache"), devices_of(self.manager):
            cache = self.graph_cache()
            artifact, forward = (None, None) if cache is None else self.loaded(cache, key, "forward")
            if artifact is None or artifact.signature is None:
                return None
            _, load_backward = self.loaded(cache, key, "backward")
            needed = writes_inputs(artifact.signature) or (artifact.signature.training and load_backward is None)
            graph = cache.get_graph(key) if needed else None
            if needed and graph is None:
                return None
        later = _LaterGraph(self, graph, cache, key, name, load_backward)
        with self.compilation(name):
            self.context.emit("cache_hit", stage="graph", name=name)
            function = self.runtime(name, artifact, forward, functools.partial(later.backward, artifact))
        if not writes_inputs(artifact.signature):
            return function
        check = sharing_check(artifact.signature, graph.examples(), frozenset(graph.static_inputs))
        if check is None:
            return function
        report = functools.partial(self.context.emit, "fallback", stage="runtime", name=name)
        return fallback_on_alias_mismatch(function, later.eagerly, check, report)

    def graph_cache(self) -> GraphCache | None:
        """The cache, unless it is off or a foreign plugin without a ``cache_key`` has a say in what is compiled.

        What is stored has no wrappers, and is wrapped when it is loaded, by plugins that can do without the graph.
        """
        wrappers = self.manager.hook.turret_wrap_runtime.get_hookimpls()
        if not self.config.cache or self.settings() is None or any("partitioned" in w.argnames for w in wrappers):
            return None
        report = functools.partial(self.context.emit, "cache_failure", stage="graph")
        return GraphCache(self.context.store("graph"), lambda text: report(message=text))

    def loaded(
        self, cache: GraphCache, key: str, role: str, given: Given = None
    ) -> tuple[Artifact | None, BoxedCallable | None]:
        """A stored artifact and its executable, or twice None; what does not load is removed, on record."""
        entry = _entry(role, given)
        artifact = cache.get(key, entry)
        if artifact is None or not fits_device(artifact.plan):
            return None, None
        try:
            function = self.load(artifact.plan, cache)
        except CacheError as error:
            reason = str(error)
        except Exception as error:  # whatever is wrong with what was stored, it can be compiled anew
            reason = f"{type(error).__name__}: {error}"
            for plan in _plans(artifact.plan):
                if plan.library is not None:
                    forget_library(plan.library, cache.store)
        else:
            training = artifact.signature is None or artifact.signature.training
            return artifact, self.wrapped(function, role if training else "inference", None)
        cache.discard(key, entry, reason)
        return None, None

    def load(self, executable: Executable, cache: GraphCache) -> BoxedCallable:
        """The function of what was stored."""
        if isinstance(executable, Plan):
            return load(executable, cache.store)
        from turret.pipeline.graph_compilers.loading import load_assembly

        return load_assembly(self, executable)

    def settings(self) -> str | None:
        """Text of everything but the graph that decides what it compiles to; None where a plugin cannot be named."""
        names = []
        for plugin in self.manager.get_plugins():
            name = self.manager.get_name(plugin)
            hooks = {caller.name for caller in self.manager.get_hookcallers(plugin) or ()}
            if name in plugin_manager.BUILTINS or hooks <= _WITHOUT_A_SAY:
                continue
            if getattr(plugin, "cache_key", None) is None:
                return None
            names.append(str(plugin.cache_key))
        return repr((attrs.evolve(self.config, cache_dir="", cache_size_limit=0, debug_dir=""), names))

    def tables(self, hook: str, target: Target) -> Iterator[tuple[str, Mapping[Any, Callable | None]]]:
        """The tables that plugins give for a merged hook, each with its plugin, in the order that they are asked in."""
        stage = hook.removeprefix("turret_")
        for plugin, table in plugin_manager.all_results(
            self.manager, hook, {"context": self.context, "target": target}
        ):
            if plugin not in plugin_manager.BUILTINS:
                _check_table(stage, plugin, table)
            yield plugin, table

    def decompositions(self, target: Target) -> dict[Any, Callable]:
        """All decomposition tables merged: a keep wins, then the plugin that is asked first."""
        merged: dict[Any, Callable] = {}
        kept: set[Any] = set()
        with self.failures("decompositions", "turret_decompositions"):
            for plugin, table in self.tables("turret_decompositions", target):
                for op, function in table.items():
                    if function is None:
                        kept.add(op)
                    elif op not in merged:
                        merged[op] = function if plugin in plugin_manager.BUILTINS else Owned(function, plugin)
        return {op: function for op, function in merged.items() if op not in kept}

    def lowerings(self, target: Target) -> Mapping[Any, Callable]:
        """All lowering tables merged; the plugin that is asked first wins."""
        merged: dict[Any, Callable] = {}
        with self.failures("lowerings", "turret_lowerings"):
            for plugin, table in self.tables("turret_lowerings", target):
                for op, function in table.items():
                    if op not in merged:
                        merged[op] = function if plugin in plugin_manager.BUILTINS else Owned(function, plugin)
        return merged

    def traced(self, captured: CapturedGraph, decompositions: Mapping[Any, Callable]) -> JointGraph:
        """The functional graph of a captured one, under the modes of the calling thread."""
        if plugin_manager.is_foreign(self.manager, "turret_graph_pass"):
            with self.failures("graph_pass"):
                _passes().give_values(captured)
        self.passes("captured", captured.module)
        return self.stage("turret_joint", captured.name, captured=captured, decompositions=decompositions)

    def simplified(self, joint: JointGraph) -> JointGraph:
        """A functional graph, rewritten by the passes of its phase."""
        with autocast_disabled():
            self.passes("joint", joint.module)
        return joint

    def partitioned(self, joint: JointGraph) -> PartitionedGraph:
        """Forward and backward of a functional graph."""
        with autocast_disabled():
            parts = self.stage("turret_partition", joint.name, joint=joint)
        from turret.graph.partitioning import verify  # brings sympy, which a warm start does without

        self.verify("partition", functools.partial(verify, joint), parts)
        return parts

    def executable(
        self, partitioned: PartitionedGraph, role: Any, target: Target, captured: CapturedGraph
    ) -> tuple[Executable, BoxedCallable]:
        """One graph of the partition as what is stored of it, and as a callable.

        It goes through place, lower, schedule and codegen; what a plugin takes to a compiler of its own after place
        goes no further.
        """
        name = f"{partitioned.name}.{role}"
        static_inputs = captured.static_inputs if role != "backward" else frozenset()
        steady = captured.static_inputs | captured.steady_inputs
        if role == "backward":
            steady = saved_inputs(partitioned, steady)
        with autocast_disabled():
            graph, placement = self.placed(self.stage_graph(partitioned, role, name, target, static_inputs))
            made = self.compiled_elsewhere(graph, placement)
            plan = self.plan_placed(graph, placement) if made is None else None
        if made is None:
            plan = attrs.evolve(plan, static_inputs=tuple(sorted(steady)))
            with self.failures("load"):
                made = plan, load(plan, self.context.store("load"))
        self.context.emit("product", stage="load", name=name, product=made[1])
        return made[0], self.wrapped(made[1], role, partitioned)

    def wrapped(self, function: BoxedCallable, role: str, partitioned: PartitionedGraph | None) -> BoxedCallable:
        """An executable in the wrappers of all plugins; ``partitioned`` is None for one that was stored."""
        for wrap in in_order(self.manager, "turret_wrap_runtime"):
            arguments = {"context": self.context, "function": function, "partitioned": partitioned, "role": role}
            with self.failures("wrap_runtime"), blaming(wrap.plugin_name):
                wrapped = wrap.function(*(arguments[a] for a in wrap.argnames))
            function = function if wrapped is None else wrapped
        return function

    def compiled_elsewhere(self, graph: StageGraph, placement: Placement) -> tuple[Assembly, BoxedCallable] | None:
        """A placed graph, or some of its clusters, in the hands of plugins' compilers; None where nobody takes it."""
        if not self.asks_graph_compilers():
            return None
        from turret.pipeline.graph_compilers.ask import compile_placed

        with self.failures("compile_graph"):
            return compile_placed(self, graph, placement)

    def stage_graph(
        self, partitioned: PartitionedGraph, role: Any, name: str, target: Target, static_inputs: frozenset[int]
    ) -> StageGraph:
        """One graph of the partition as the stages after it take it, rewritten by the passes of its phase."""
        module = partitioned.backward if role == "backward" else partitioned.forward
        self.passes("backward" if role == "backward" else "forward", module)
        return StageGraph(
            module=module,
            role=role,
            target=target,
            output_strides=output_strides(partitioned, role),
            static_inputs=static_inputs,
            visible_outputs=partitioned.num_forward_outputs if role == "forward" else None,
            name=name,
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
            self.verify("place", functools.partial(_check_placement, graph), placement)
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
        program = self.stage("turret_lower", graph.name, graph=graph, placement=placement, lowerings=lowerings)
        from turret.ir import verify  # expressions of sizes are sympy's, whose import a warm start does without

        self.verify("lower", verify, program, functools.partial(_lowering_at_fault, graph, lowerings))
        return _passes().run_ir_passes(self.manager, self.context, "lowered", program, graph.target)

    def scheduled(self, program: LoopProgram, target: Target) -> Schedule:
        """The kernels of a loop program, verified."""
        schedule = self.stage("turret_schedule", program.name, program=program, target=target)
        from turret.ir import verify

        self.verify("schedule", verify, schedule)
        return _passes().run_ir_passes(self.manager, self.context, "scheduled", schedule, target)

    def generated(self, schedule: Schedule, target: Target) -> Plan:
        """The plan that runs a schedule."""
        plan = self.stage("turret_codegen", schedule.program.name, schedule=schedule, target=target)
        self.verify("codegen", _check_plan, plan)
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
        config = updated(self.config, {"cudagraphs": False} if "cudagraphs" in options else {}, options)
        made.config, made.context = config, attrs.evolve(self.context, config=config)
        return made

    def hint_at_eager_calls(self, name: str, placement: Placement) -> None:
        """Calls that no kernel was generated for split what could have been fused."""
        eager = [f"{node}: {p.reason}" for node, p in placement.nodes.items() if p.where == "eager"]
        if eager:
            shown = "; ".join(eager[:_SHOWN]) + ("; ..." if len(eager) > _SHOWN else "")
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
        self, stage: str, check: Callable[[Any], None], product: Any, whose: Callable[[Any], str] = lambda error: ""
    ) -> None:
        """Hold a product against its contract; whoever made it is to blame, or whom ``whose`` names."""
        try:
            check(product)
        except TurretError as error:
            raise StageError(stage, whose(error) or self.answered[stage], str(error)) from error


def _entry(role: str, given: Given) -> str:
    """The role that an executable is stored as."""
    return role if given is None else f"{role} {given}"


def _passes() -> Any:
    """The module that runs passes, which a warm start does without."""
    from turret.pipeline import passes

    return passes


def _check_plan(plan: Any) -> None:
    """Refuse what is no plan."""
    if not isinstance(plan, Plan):
        raise PluginError(f"turret_codegen gave {plan!r}; expected a turret.plan.Plan")


def _plans(executable: Executable) -> Iterator[Plan]:
    """The plans in what was stored."""
    if isinstance(executable, Plan):
        yield executable
    else:
        yield from (part.plan for part in executable.parts if part.plan is not None)


def _check_placement(graph: StageGraph, placement: Any) -> None:
    """Refuse what is no placement of a graph's calls."""
    nodes = getattr(placement, "nodes", None)
    if not isinstance(placement, Placement) or not isinstance(nodes, dict):
        raise VerificationError(f"a {type(placement).__name__} is no Placement of {graph.name}")
    for name, placed in nodes.items():
        if not isinstance(placed, NodePlacement) or placed.where not in ("compiled", "eager"):
            raise VerificationError(f"the placement of {name} is {placed!r}; expected NodePlacement, compiled or eager")


def _check_table(stage: str, plugin: str, table: Any) -> None:
    """Refuse what is no table of functions; None keeps an op whole, among decompositions."""
    if not isinstance(table, Mapping):
        raise StageError(stage, plugin, f"the table is a {type(table).__name__}; expected a mapping of operators")
    for op, function in table.items():
        if not (callable(function) or (function is None and stage == "decompositions")):
            raise StageError(stage, plugin, f"the entry of {op} is {function!r}; expected a function")


def _lowering_at_fault(graph: StageGraph, lowerings: Mapping[Any, Callable], error: Any) -> str:
    """The plugin whose lowering made the statement that an error is about, where it is not a built-in one."""
    origins = getattr(getattr(error, "where", None), "origins", ())
    targets = [node.target for node in graph.module.graph.nodes if node.name in origins]
    return next((found for target in targets if (found := owner(lowerings.get(target)))), "")


class _Graph:
    """One captured graph under compilation: traced once, and its backward compiled when first asked for."""

    def __init__(self, pipeline: Pipeline, captured: CapturedGraph, cache: GraphCache | None, key: str | None) -> None:
        self.pipeline, self.captured, self.cache, self.key = pipeline, captured, cache, key
        self.target = target_of(captured)
        self.ambient = TraceModes.now()
        self.lock = Lock()
        self.partitioned: PartitionedGraph | None = None
        self.saved: SavedValues | None = None
        self.backwards: dict[Given, BoxedCallable | None] = {}

    def partition(self) -> PartitionedGraph:
        """Trace and cut the graph; once."""
        if self.partitioned is not None:
            return self.partitioned
        pipeline, captured = self.pipeline, self.captured
        assumed = _guard_count(captured)
        table = pipeline.decompositions(self.target)
        with self.ambient.restored(), self.covered_by_the_key():
            joint = pipeline.traced(captured, table)
        self.partitioned = pipeline.partitioned(pipeline.simplified(joint))
        if sum(o.differentiable for o in joint.signature.graph_outputs) > 1:
            from turret.graph.partitioning.partial import SavedValues  # brings sympy, which a warm start does without

            with pipeline.failures("partition"):
                self.saved = SavedValues(joint, self.partitioned)
        if _guard_count(captured) != assumed:
            # What the trace assumed of sizes became guards of this capture; a stored artifact would skip them.
            self.cache = None
        return self.partitioned

    @contextlib.contextmanager
    def covered_by_the_key(self) -> Iterator[None]:
        """Store nothing, on record, where the trace inside runs code of the program that its key does not cover."""
        if self.cache is None or not runs_own_code(self.captured.module):
            yield
            return
        known = traced_code(self.captured.module)
        with recorded() as record:
            yield
        keyed = [p for p in self.pipeline.manager.get_plugins() if getattr(p, "cache_key", None) is not None]
        plugins = {getattr(p, "__name__", type(p).__module__) for p in keyed}  # their keys are part of this one
        unknown = [code for code, module in record.codes.items() if code not in known and module not in plugins]
        if unknown or not record.complete:
            self.cache = None
            named = ", ".join(sorted(f"{c.co_qualname} ({c.co_filename}:{c.co_firstlineno})" for c in unknown)[:_SHOWN])
            message = f"{self.captured.name} is compiled in every process: its trace ran {named or 'under a profiler'}"
            self.pipeline.context.emit("perf_hint", stage="graph_cache", name=self.captured.name, message=message)

    def compile_forward(self) -> tuple[Artifact, BoxedCallable]:
        """Compile (and store) the forward, or the whole of an inference graph."""
        partitioned = self.partition()
        role = "inference" if partitioned.backward is None else "forward"
        plan, function = self.pipeline.executable(partitioned, role, self.target, self.captured)
        artifact = Artifact(plan, partitioned.signature, len(partitioned.saved_tensors), len(partitioned.saved_sizes))
        self.store("forward", artifact)
        return artifact, function

    def store(self, role: str, artifact: Artifact) -> None:
        """Store what a graph compiled to; nothing more of a graph whose executable cannot be."""
        unstored = getattr(artifact.plan, "unstored", "")
        if unstored and self.cache is not None:
            self.cache = None
            message = f"{self.captured.name} is compiled in every process: {unstored}"
            self.pipeline.context.emit("perf_hint", stage="graph_cache", name=self.captured.name, message=message)
        if self.cache is not None:
            with self.pipeline.failures("graph_cache"):
                self.cache.put(self.key, role, artifact)

    def backward(self, forward: Artifact, given: Given = None) -> BoxedCallable | None:
        """The backward that belongs to a forward, from the cache or compiled; all threads get the same.

        None where there is none for these gradients alone, on record.
        """
        if given not in self.backwards:
            with self.lock:
                if given not in self.backwards:
                    with self.pipeline.compilation(f"{self.captured.name}.backward"):
                        self.backwards[given] = self.make_backward(forward, given)
        return self.backwards[given]

    def make_backward(self, forward: Artifact, given: Given) -> BoxedCallable | None:
        if self.cache is not None:
            _, found = self.pipeline.loaded(self.cache, self.key, "backward", given)
            if found is not None:
                return found
        partitioned = self.partition()
        saved = (len(partitioned.saved_tensors), len(partitioned.saved_sizes))
        if saved != (forward.saved_tensors, forward.saved_sizes) or partitioned.signature != forward.signature:
            raise StageError(
                "partition",
                "turret",
                "the graph was cut in another way than when its stored forward was compiled",
                "turret cache clear removes the stored forward",
            )
        try:
            partitioned = partitioned if given is None else self.partial(partitioned, given)
        except StageError as error:
            if self.pipeline.config.on_error == "raise":
                raise
            self.pipeline.report_zeros(self.captured.name, str(error))
            return None
        if self.pipeline.past_limit(len(self.backwards), partitioned.name):
            return interpreted(partitioned.backward)
        try:
            plan, function = self.pipeline.executable(partitioned, "backward", self.target, self.captured)
        except StageError as error:
            if self.pipeline.config.on_error == "raise":
                raise
            self.pipeline.report_fallback(error)
            return interpreted(partitioned.backward)
        self.store(_entry("backward", given), Artifact(plan))
        return function

    def partial(self, partitioned: PartitionedGraph, given: tuple[int, ...]) -> PartitionedGraph:
        """The cut, with the backward for the gradients of some graph outputs over what the forward saves for all."""
        from turret.graph.partitioning import costs

        pipeline, name = self.pipeline, f"{self.captured.name}.given_{'_'.join(map(str, given))}"
        captured = attrs.evolve(self.captured, tangents=given, name=name)
        assumed = _guard_count(captured)
        table = pipeline.decompositions(self.target)
        with self.ambient.restored(), self.covered_by_the_key():
            # Passes over the captured graph have run: it was traced before.
            joint = pipeline.stage("turret_joint", name, captured=captured, decompositions=table)
        joint = pipeline.simplified(joint)
        with pipeline.failures("partition"), autocast_disabled():
            backward = self.saved.backward(joint, len(given), costs(pipeline.context))
            if _guard_count(captured) != assumed:
                raise UnsupportedError("the backward of fewer gradients assumes more of sizes than that of all")
        return attrs.evolve(partitioned, backward=backward, name=name)


class _LaterGraph:
    """A stored graph that is made again when it is needed: for a backward that nobody compiled yet, or eagerly.

    ``graph`` is None where it has not been read; ``loaded`` is the backward for all gradients, if it was stored.
    """

    def __init__(
        self, pipeline: Pipeline, graph: Any, cache: GraphCache, key: str, name: str, loaded: BoxedCallable | None
    ) -> None:
        self.pipeline, self.graph, self.cache, self.key, self.name = pipeline, graph, cache, key, name
        self.ambient = TraceModes.now()
        self.lock = Lock()
        self.made: _Graph | None = None
        self.loaded = loaded

    def work(self) -> _Graph | None:
        """The graph under compilation; None where it is not stored any more."""
        with self.lock:
            graph = self.graph or self.cache.get_graph(self.key)
            if self.made is None and graph is not None:
                captured = stored_graph.restored(graph, self.name)
                self.made = _Graph(self.pipeline, captured, self.cache, self.key)
                self.made.ambient = self.ambient
            return self.made

    def backward(self, forward: Artifact, given: Given = None) -> BoxedCallable | None:
        if given is None and self.loaded is not None:
            return self.loaded
        if given is not None:
            with devices_of(self.pipeline.manager):
                _, found = self.pipeline.loaded(self.cache, self.key, "backward", given)
            if found is not None:
                return found
        work = self.work()
        if work is None:
            self.pipeline.report_zeros(self.name, "the graph that it was compiled from is not in the cache any more")
            return None
        return work.backward(forward, given)

    def eagerly(self, *args: Any) -> Any:
        return eagerly(self.work().captured.module)(*args)


def _guard_count(captured: CapturedGraph) -> int:
    shape_env = getattr(captured.fake_mode, "shape_env", None)
    return 0 if shape_env is None else len(shape_env.guards)


def target_of(captured: CapturedGraph) -> Target:
    """The device that a graph's tensors lie on; the other one where tensors of the host and of a device meet."""
    return _target(devices_in(captured))


def target_of_values(values: Iterable[Any]) -> Target:
    """The device that the tensors among ``values`` lie on, likewise."""
    devices = {device for x in values if isinstance(device := getattr(x, "device", None), torch.device)}
    return _target(sorted(devices, key=str))


def _target(devices: Sequence[torch.device]) -> Target:
    others = [device for device in devices if device.type != HOST.type]
    device = others[0] if others else HOST
    facts = device_for(device.type).properties(device.index or 0)
    return Target(device.type, device.index, facts.arch, facts.cores, facts.memory)


def saved_inputs(partitioned: PartitionedGraph, wanted: frozenset[int]) -> frozenset[int]:
    """Positions of a backward's inputs that are those of the forward at the positions ``wanted``, saved as they are."""
    inputs = partitioned.forward.graph.find_nodes(op="placeholder")
    among = {inputs[number] for number in wanted}
    (output,) = next(n for n in reversed(partitioned.forward.graph.nodes) if n.op == "output").args
    saved = output[partitioned.num_forward_outputs :][: len(partitioned.saved_tensors)]
    first = len(partitioned.saved_sizes)
    return frozenset(first + number for number, node in enumerate(saved) if node in among)


def output_strides(partitioned: PartitionedGraph, role: str) -> tuple[tuple[Any, ...] | None, ...]:
    """Strides demanded of one graph's outputs.

    The user's outputs have eager's strides; saved tensors and gradients those of the trace, which the backward
    and autograd were prepared for.
    """
    module = partitioned.backward if role == "backward" else partitioned.forward
    (output,) = next(n for n in reversed(module.graph.nodes) if n.op == "output").args
    demanded = () if role == "backward" else partitioned.signature.graph_outputs
    strides: list[tuple[Any, ...] | None] = []
    names: dict[str, torch.SymInt] | None = None
    for number, node in enumerate(output):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        stride = tuple(value.stride()) if isinstance(value, torch.Tensor) else None
        if number < len(demanded) and stride is not None and demanded[number].stride != _texts(stride):
            stride = demanded[number].stride
            if not all(isinstance(s, int) for s in stride):
                names = _sizes_by_name(module) if names is None else names
                try:
                    stride = compile_sizes(stride)(names)
                except NameError as error:
                    raise UnsupportedError(f"the strides {stride} of output {number} are no sizes of inputs") from error
        strides.append(stride)
    return tuple(strides)


def _texts(sizes: Iterable[Any]) -> tuple[SizeText, ...]:
    from turret.ir.index import size_of_inputs  # brings sympy, which a warm start does without

    return tuple(size_text(size_of_inputs(s)) for s in sizes)


def _sizes_by_name(module: fx.GraphModule) -> dict[str, torch.SymInt]:
    """The symbols of a trace that its inputs are, or have as sizes or strides."""
    found: dict[str, torch.SymInt] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(number, torch.SymInt) and number.node.expr.is_Symbol:
                found.setdefault(number.node.expr.name, number)
    return found


def interpreted(module: fx.GraphModule) -> BoxedCallable:
    """An FX graph run node by node: the fallback where a graph does not compile."""

    def run(args: list) -> list:
        inputs = list(args)
        args.clear()
        with torch.no_grad():
            return list(fx.Interpreter(module).boxed_run(inputs))

    return run


@attrs.frozen
class Compiler:
    """A manager and a configuration: what a capture plugin is handed to compile graphs with.

    Two with the same plugins and equal configurations are equal: they compile a graph to the same.
    """

    manager: pluggy.PluginManager
    config: Config

    def __call__(self, captured: CapturedGraph) -> Callable[..., Any]:
        return compile_captured(self.manager, self.config, captured)

    def with_key(self, captured: CapturedGraph) -> tuple[Callable[..., Any], str | None]:
        """The callable of a graph, and the key by which ``stored`` finds it in another process (None: not at all)."""
        return _compile_with_key(self.manager, self.config, captured, True)

    def stored(self, key: str, name: str) -> Callable[..., Any] | None:
        """What ``with_key`` gave a key for, from the cache; None where a part of it is not there (any more)."""
        return Pipeline(self.manager, self.config).stored(key, name)

    def settings(self) -> str | None:
        """Text of all that decides what a graph compiles to, beside the graph; None where nothing can be stored."""
        pipeline = Pipeline(self.manager, self.config)
        return None if pipeline.graph_cache() is None else pipeline.settings()
