"""The stages one by one: each a function of the product of the stage before, for who wants to look, change or replace.

They call the hooks that ``turret.compile`` calls, in its order, and hand on its products (``turret.hooks.products``)::

    joint = turret.joint_graph(f, *args)                    JointGraph
    parts = turret.partition(joint)                         PartitionedGraph
    program = turret.lower(parts, "forward")                LoopProgram    ("backward" for the other half)
    plan = turret.codegen(turret.schedule(program))         Plan
    run = turret.assemble(parts, plan, backward_plan)       a callable over flat inputs, an autograd node for training

No function changes the product that it is given.  A stage that fails raises ``StageError``, whatever ``on_error`` says.
``plugins`` and ``options`` are those of ``turret.compile`` and hold for the one call.
"""

from __future__ import annotations

import contextlib
import copy
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import fx

from turret.api.arguments import check_arguments, check_model
from turret.api.flat_calls import Recorder, checked, flat_inputs, with_flat_inputs
from turret.errors import OptionError, StageError, TurretError, UnsupportedError
from turret.frames.trace_modes import TraceModes
from turret.graph.lazy_module import lazy_module
from turret.hooks import plugin_manager
from turret.hooks.devices import devices_of
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import (
    BoxedCallable,
    CapturedGraph,
    JointGraph,
    PartitionedGraph,
    Placement,
    Role,
    StageGraph,
    Target,
)
from turret.pipeline.graph_facts import interpreted, target_of_values
from turret.pipeline.passes import give_values
from turret.pipeline.stage_calls import Pipeline
from turret.plan import Plan
from turret.plan.executor import load as load_plan
from turret.storage.fork_safety import compiling
from turret.torch_compat.trees import pytree

if TYPE_CHECKING:
    from turret.ir import LoopProgram, Schedule

Executable = Plan | fx.GraphModule | BoxedCallable
"""What runs one graph: a plan, an FX graph (call by call), or ``fn(args: list) -> list``."""


def captured_graph(
    f: Callable[..., Any],
    *args: Any,
    dynamic: bool = False,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> CapturedGraph:
    """Capture one call of ``f`` as one graph of torch calls; the call is not made.

    The graph's inputs are ``turret.flat_inputs(f, *args)``: the parameters and buffers of ``f`` where it is a module,
    then the tensors that ``args`` hold, a module among them standing for its parameters and buffers.  Its outputs are
    the leaves of what ``f`` returns, in order; what else ``f`` assumed (numbers, types, branches) is part of the graph.
    ``dynamic``: sizes are symbols.  Raises ``UnsupportedError`` for an ``f`` that reaches tensors in another way or
    keeps some elsewhere than in its result, and ``CaptureError`` for one that is no single graph.
    """
    check_model(f)
    recorder = Recorder(flat_inputs(f, *args))
    with _pipeline(plugins, options, calls=True) as pipeline:
        target = f.__call__ if isinstance(f, torch.nn.Module) else f
        try:
            call = pipeline.manager.hook.turret_capture(
                context=pipeline.context, target=target, compile_graph=recorder, fullgraph=True, dynamic=dynamic
            )
            result = call(*args)
        except TurretError:
            raise
        except Exception as error:
            plugin = plugin_manager.plugin_of(pipeline.manager, "turret_capture", error)
            raise StageError("capture", plugin, f"{type(error).__name__}: {error}") from error
        captured = with_flat_inputs(recorder, pytree.tree_leaves(result))
        give_values(captured)
    pipeline.context.emit("product", stage="capture", name=captured.name, product=captured)
    return captured


def joint_graph(
    f: Callable[..., Any] | CapturedGraph,
    *args: Any,
    dynamic: bool = False,
    decompositions: Mapping[Any, Callable[..., Any] | None] | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> JointGraph:
    """Trace one call of ``f`` to a functional ATen graph of forward, or of forward and backward.

    ``f`` is a function, a module, or what ``captured_graph`` gave for one (without ``args``); the graph's inputs are
    those of ``captured_graph``.  It has a backward where an input requires a gradient and gradients are on.
    ``decompositions`` (``OpOverload -> function``, None to keep the op whole) win over the built-in ones.  The passes
    of the phases ``"captured"`` and ``"joint"`` have run.
    """
    if decompositions:
        plugins = (*plugins, _Decompositions(decompositions))
    if isinstance(f, CapturedGraph) and args:
        raise OptionError("joint_graph was given a captured graph and arguments, which the graph has already")
    if not isinstance(f, CapturedGraph):
        f = captured_graph(f, *args, dynamic=dynamic, plugins=plugins, options=options)
    with _pipeline(plugins, options) as pipeline:
        captured = _replaced(f)
        table = pipeline.decompositions(target_of_values(_values(captured.module)))
        with TraceModes.now().restored():
            joint = pipeline.traced(captured, table)
        return pipeline.simplified(joint)


def partition(
    joint: JointGraph, *, plugins: Sequence[Any] = (), options: Mapping[str, Any] | None = None
) -> PartitionedGraph:
    """Cut a joint graph into forward and backward; ``turret.graph.partitioning`` has what another cut is made with."""
    _expect(joint, JointGraph)
    with _pipeline(plugins, options) as pipeline:
        return pipeline.partitioned(_replaced(joint))


def stage_graph(
    parts: PartitionedGraph,
    role: Role | None = None,
    *,
    target: Target | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> StageGraph:
    """One of the graphs of a partition as ``place`` and ``lower`` take it.

    ``role`` is ``"forward"`` (``"inference"``, where there is no backward) unless it says ``"backward"``.  The passes
    of the phase ``"forward"`` or ``"backward"`` have run.
    """
    _expect(parts, PartitionedGraph)
    if role is None or (role == "forward" and parts.backward is None):
        role = "inference" if parts.backward is None else "forward"
    if role not in ("inference", "forward", "backward") or (role == "inference") != (parts.backward is None):
        known = "'inference'" if parts.backward is None else "'forward' or 'backward'"
        raise UnsupportedError(f"role is {role!r}; expected {known} of the partition {parts.name!r}")
    with _pipeline(plugins, options) as pipeline:
        module = _copy(parts.graph_of(role))
        target = target or target_of_values(_values(module))
        copied = attrs.evolve(parts, backward=module) if role == "backward" else attrs.evolve(parts, forward=module)
        return pipeline.stage_graph(copied, role, f"{parts.name}.{role}", target, frozenset())


def place(graph: StageGraph, *, plugins: Sequence[Any] = (), options: Mapping[str, Any] | None = None) -> Placement:
    """Where each call of a graph runs: in compiled code, or eagerly, and why."""
    _expect(graph, StageGraph)
    with _pipeline(plugins, options) as pipeline:
        return pipeline.placed(_replaced(graph))[1]


def lower(
    graph: PartitionedGraph | StageGraph,
    role: Role | None = None,
    *,
    placement: Placement | None = None,
    target: Target | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> LoopProgram:
    """Place one graph (by ``placement``, where it is given) and turn it into a loop program.

    ``graph`` is what ``stage_graph`` gave, or a partition, of which ``role`` says which half (see ``stage_graph``).
    """
    if isinstance(graph, PartitionedGraph):
        graph = stage_graph(graph, role, target=target, plugins=plugins, options=options)
    _expect(graph, StageGraph)
    with _pipeline(plugins, options) as pipeline:
        graph, found = pipeline.placed(_replaced(graph), placement)
        return pipeline.lowered(graph, found)


def schedule(
    program: LoopProgram,
    *,
    target: Target | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> Schedule:
    """Fuse a loop program's definitions into kernels, put all in order, and plan memory."""
    from turret.ir import LoopProgram

    _expect(program, LoopProgram)
    with _pipeline(plugins, options) as pipeline:
        return pipeline.scheduled(program, target or _target_of_program(program))


def codegen(
    schedule: Schedule,
    *,
    target: Target | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Emit and compile the kernels of a schedule; the plan that runs them."""
    from turret.ir import Schedule

    _expect(schedule, Schedule)
    with _pipeline(plugins, options) as pipeline:
        return pipeline.generated(schedule, target or _target_of_program(schedule.program))


def load(
    executable: Executable, *, plugins: Sequence[Any] = (), options: Mapping[str, Any] | None = None
) -> BoxedCallable:
    """A function ``fn(args: list) -> list`` of one graph, which empties ``args``.

    A plan is run as compiled, an FX graph call by call; any other callable is taken to be such a function.
    """
    if isinstance(executable, fx.GraphModule):
        return interpreted(executable)
    if not isinstance(executable, Plan):
        check_model(executable)
        return executable
    with _pipeline(plugins, options) as pipeline, pipeline.failures("load"):
        return load_plan(executable, pipeline.context.store("load"))


def assemble(
    parts: PartitionedGraph,
    forward: Executable,
    backward: Executable | None = None,
    *,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Join what runs the graphs of a partition into a function of the flat inputs that ``flat_inputs`` gives.

    It returns the leaves of the program's result as a tuple, writes to inputs as the program did, and is an autograd
    node where there is a backward.  Each call's inputs must be laid out as those that were traced, and the sizes
    that are symbols may differ: ``TurretError`` for others.  Where gradients reach some of its results alone, the
    backward gets zeros for the others.
    """
    _expect(parts, PartitionedGraph)
    if (backward is None) != (parts.backward is None):
        wanted = "no backward" if parts.backward is None else "a backward: a plan, an FX graph or a function"
        raise UnsupportedError(f"assemble was given backward={backward!r}; the partition {parts.name!r} has {wanted}")
    run = load(forward, plugins=plugins, options=options)
    run_backward = None if backward is None else load(backward, plugins=plugins, options=options)
    with _pipeline(plugins, options) as pipeline:
        saved = len(parts.saved_tensors), len(parts.saved_sizes)
        function = pipeline.runtime(
            parts.name, parts.signature, saved, run, lambda given=None: None if given else run_backward
        )
    return checked(function, parts)


class _Decompositions:
    """A plugin that brings one table."""

    def __init__(self, table: Mapping[Any, Callable[..., Any] | None]) -> None:
        self.table = table

    @hookimpl
    def turret_decompositions(self) -> Mapping[Any, Callable[..., Any] | None]:
        return self.table


@contextlib.contextmanager
def _pipeline(plugins: Sequence[Any], options: Mapping[str, Any] | None, calls: bool = False) -> Iterator[Pipeline]:
    """The stages with these plugins and options; whatever fails inside is a ``TurretError``.

    ``calls``: the program is called inside, which is captured as any call is, and compiles where it is.
    """
    unasked = dict.fromkeys(("fullgraph", "disable"), False) | dict.fromkeys(("dynamic", "backend", "mode"))
    check_arguments(**unasked, options=options, plugins=plugins)
    manager = plugin_manager.create(tuple(plugins)) if plugins else plugin_manager.default_manager()
    pipeline = Pipeline(manager, plugin_manager.configure(manager, None, options))
    with contextlib.nullcontext() if calls else compiling.here(), devices_of(manager):
        try:
            yield pipeline
        except TurretError:
            raise
        except Exception as error:
            raise StageError("pipeline", "turret", f"{type(error).__name__}: {error}") from error


def _expect(product: Any, kind: type) -> None:
    """Refuse what is no product of the stage before."""
    if not isinstance(product, kind):
        raise OptionError(
            f"expected a {kind.__name__}, the product of the stage before (docs/stages.md); given "
            f"{reprlib.repr(product)} of type {type(product).__qualname__}"
        )


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """A graph that passes may edit; tensors and graphs that it holds are the same."""
    return lazy_module(module, copy.deepcopy(module.graph), type(module).__name__)


def _replaced(product: Any) -> Any:
    """A product with a copy of its graph."""
    return attrs.evolve(product, module=_copy(product.module))


def _values(module: fx.GraphModule) -> list[Any]:
    """All that is known of a graph's values."""
    found = (node.meta.get("val", node.meta.get("example_value")) for node in module.graph.nodes)
    return [leaf for value in found for leaf in pytree.tree_leaves(value)]


def _target_of_program(program: LoopProgram) -> Target:
    return target_of_values(program.declarations().values())
