"""The hooks: every decision of the pipeline, in the order in which things happen.

A plugin is any object or module with functions of these names marked ``@turret.hookimpl``.  Built-in
stages are plugins like any other, registered from one list (``plugin_manager.BUILTINS``); then come installed
plugins, then those of a callable.  An implementation names only the arguments that it needs.  Hooks run at compile time
only.

Each hook receives ``context``, the ``CompileContext`` of the compilation under way: its ``config``, its
``hooks`` (to call smaller hooks), and ``emit`` (events).  *First result*: implementations are asked in turn
until one returns something other than None, the last registered first: yours come before the built-ins.  *All*: every
implementation is asked, in that order, and the pipeline merges.  *In turn*: every one runs, in order of registration,
on what the one before left: yours come after the built-ins.  ``tryfirst``, ``trylast``, ``before=`` and ``after=`` of
``hookimpl`` move one (``turret.hooks.registration.plugin_order``).  Products are frozen: a hook returns a new one,
except that ``turret_graph_pass`` may edit the FX graph in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from turret.hooks.registration.plugin_order import hookimpl as hookimpl

if TYPE_CHECKING:
    from torch import fx

    from turret.frames.filtering.guard_entries import GuardEntry
    from turret.hooks.config import Option
    from turret.hooks.context import CompileContext
    from turret.hooks.device_types import Device
    from turret.hooks.events import Event
    from turret.hooks.products import (
        BoxedCallable,
        CapturedGraph,
        GraphPhase,
        JointGraph,
        LoopPhase,
        PartitionedGraph,
        Placement,
        Role,
        Scope,
        StageGraph,
        Target,
    )
    from turret.hooks.signature import GraphSignature
    from turret.ir import AttentionCandidate, FusionCandidate, LoopProgram, ProductCandidate, Schedule
    from turret.plan import Plan

hookspec = pluggy.HookspecMarker("turret")


@hookspec
def turret_options() -> Sequence[Option] | None:
    """Declare options: a sequence of ``turret.Option``.  They are given, listed and read as the built-in ones are.

    ``context.config.<name>`` is the value.  Asked once, when plugins are registered.  All; a name is declared once.
    """


@hookspec(firstresult=True)
def turret_device(device_type: str) -> Device | None:
    """The device of a type (torch's name): it loads and runs plans, and says what stages have to know of it.

    Asked once for each type and set of plugins.  A device without a plugin runs its graphs call by call.  First result.
    """


@hookspec(firstresult=True)
def turret_capture(
    context: CompileContext,
    target: Callable[..., Any],
    compile_graph: Callable[[CapturedGraph], Callable[..., Any]],
    fullgraph: bool,
    dynamic: bool | None,
) -> Callable[..., Any] | None:
    """Intercept calls of ``target`` (a function or a module's call) and turn them into graphs.

    Called once per ``turret.compile``, whose ``fullgraph`` and ``dynamic`` are handed on.  Returns a
    callable with the signature of ``target`` that, on a miss, captures one or more graphs, hands each to
    ``compile_graph`` and calls what comes back with the graph's flat inputs.  First result.
    """


@hookspec
def turret_guard_filter(context: CompileContext, guards: tuple[GuardEntry, ...]) -> list[bool] | None:
    """Say keep (True) or drop (False) for each guard, or None for "keep all".  All must say keep."""


@hookspec
def turret_decompositions(context: CompileContext, target: Target) -> Mapping[Any, Callable[..., Any] | None] | None:
    """Ops to decompose for this target: ``OpOverload -> function``; ``None`` as the function keeps the op whole.

    All tables are merged: a keep (``None``) wins over any decomposition, and among functions an earlier
    plugin's wins.  Functions take and return tensors and are traced under fake tensors.
    """


@hookspec
def turret_graph_pass(context: CompileContext, phase: GraphPhase, module: fx.GraphModule) -> bool | None:
    """Rewrite an FX graph in place at a named phase; return True when something changed.  In turn.

    Phases: ``"captured"`` (torch-level calls, in-place ones among them), ``"joint"`` (functional ATen, before the cut),
    ``"forward"`` and ``"backward"`` (after the cut; an inference graph is a ``"forward"``), ``"placed"`` (each of these
    once it is known where its calls run).  Inputs, and how many outputs there are, must stay as they are.  In all
    phases a node's ``meta["val"]`` is its fake value; that of a new call is computed where it is left out.  In
    ``"placed"`` a call's ``meta["placement"]`` is its ``NodePlacement``, which may be changed; a new call without one
    is placed.
    """


@hookspec(firstresult=True)
def turret_joint(
    context: CompileContext, captured: CapturedGraph, decompositions: Mapping[Any, Any]
) -> JointGraph | None:
    """Trace a captured graph to a functional ATen graph of forward, or forward and backward.  First result.

    One with ``captured.tangents`` was traced before and is to be traced alike, but for fewer gradients, or for some of
    other classes (``captured.tangent_forms``), or as far as ``captured.stops``.
    """


@hookspec(firstresult=True)
def turret_partition(context: CompileContext, joint: JointGraph) -> PartitionedGraph | None:
    """Cut a joint graph into forward and backward, and decide what to save and what to recompute.  First result."""


@hookspec(firstresult=True)
def turret_partition_cost(context: CompileContext, node: fx.Node) -> float | None:
    """Cost of recomputing one node in the backward, in bytes-equivalents; ``inf`` forbids it.  First result."""


@hookspec(firstresult=True)
def turret_place(context: CompileContext, graph: StageGraph) -> Placement | None:
    """Say for each call node whether it is compiled for the target or runs eagerly, and why.  First result."""


@hookspec(firstresult=True)
def turret_compile_graph(
    context: CompileContext,
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    scope: Scope,
    role: Role,
    placement: Placement | None,
    target: Target,
    name: str,
) -> Callable[..., Any] | None:
    """Compile a graph with a compiler of one's own; what is returned runs in its place, and no later stage sees it.

    ``scope`` is ``"captured"`` (torch calls as the program made them, before autograd is traced; the callable has to
    record what gradients need), ``"graph"`` (a forward, backward or inference graph: functional ATen, with the
    ``placement`` of its calls) or ``"cluster"`` (calls of a graph placed as compiled, as a graph by itself; eager calls
    run between clusters).  A graph that nobody takes is offered in clusters, and a cluster that nobody takes is
    compiled by the stages that follow.  ``role`` is ``"inference"``, ``"forward"`` or ``"backward"``.

    ``module`` is the plugin's to edit.  ``example_inputs`` are the call's own tensors where the scope is ``"captured"``
    and capture has them, else fake ones; sizes that change are SymInts.  The callable takes the graph's inputs and
    returns a tuple or list of its outputs, in their dtypes and shapes; behind the trace, one whose attribute
    ``_boxed_call`` is true takes a list of inputs, which it empties, and one with a method ``save() -> bytes`` is
    stored beside the graph, if the plugin has a ``cache_key``, and loaded by ``turret_load_graph``.  First result.
    """


@hookspec(firstresult=True)
def turret_load_graph(context: CompileContext, saved: bytes, name: str) -> Callable[..., Any] | None:
    """The callable again whose ``save()`` gave ``saved``, in another process.  The plugin that saved it is asked."""


@hookspec
def turret_lowerings(context: CompileContext, target: Target) -> Mapping[Any, Callable[..., Any]] | None:
    """``OpOverload -> lowering``: a function ``(builder, *args, **kwargs)`` that defines loop-level tensors.

    All tables are merged; an earlier plugin's entry wins.  An op with no entry runs as an extern ATen call.
    """


@hookspec(firstresult=True)
def turret_lower(
    context: CompileContext, graph: StageGraph, placement: Placement, lowerings: Mapping[Any, Any]
) -> LoopProgram | None:
    """Turn one ATen graph into a loop program by running the lowering of each node once.  First result."""


@hookspec
def turret_ir_pass(
    context: CompileContext, phase: LoopPhase, product: LoopProgram | Schedule, target: Target
) -> LoopProgram | Schedule | None:
    """Rewrite a product of the loop IR at a named phase; return the new one, or None to leave it.  In turn.

    Phases: ``"lowered"`` (a ``LoopProgram``, before it is scheduled) and ``"scheduled"`` (a ``Schedule``, before code
    is generated).  Each gets what the one before returned; what it returns is verified (``turret.ir.verify``).
    """


@hookspec(firstresult=True)
def turret_schedule(context: CompileContext, program: LoopProgram, target: Target) -> Schedule | None:
    """Fuse definitions into kernels, order them, and record why each fusion was or was not made.  First result."""


@hookspec(firstresult=True)
def turret_fusion_score(context: CompileContext, candidate: FusionCandidate) -> float | None:
    """Worth of one legal fusion in bytes of memory traffic saved; zero or less declines it.  First result."""


@hookspec(firstresult=True)
def turret_choice_cost(
    context: CompileContext, candidate: ProductCandidate | AttentionCandidate, target: Target
) -> float | None:
    """Microseconds that one way of computing a matrix product takes, what is computed along with it included; or one of
    computing the attention of few queries.

    Of the ways that get an answer the cheapest is taken (``inf`` forbids one); a call where none but it gets one.
    First result.
    """


@hookspec(firstresult=True)
def turret_codegen(context: CompileContext, schedule: Schedule, target: Target) -> Plan | None:
    """Emit, compile and load the kernels of a schedule; return the plan that runs them.

    First result; a code generator returns None for a target whose device does not run what it makes
    (``turret.hooks.devices.device_for(target.device_type).kernel_languages``).
    """


@hookspec(firstresult=True)
def turret_runtime(
    context: CompileContext,
    signature: GraphSignature,
    saved_tensors: int,
    saved_sizes: int,
    forward: BoxedCallable,
    backward: Callable[..., BoxedCallable | None],
) -> Callable[..., Any] | None:
    """Join executables into the callable that user code calls with the graph's flat inputs.

    Applies mutations and aliases of outputs as the signature says, and for training is an autograd node.
    ``forward`` returns the graph's forward outputs, then ``saved_tensors`` tensors and ``saved_sizes`` ints for
    the backward, which ``backward()`` compiles on first call.  ``backward(given)`` is that for gradients of these
    graph outputs alone (a tuple of positions), and takes their tangents alone; None where there is no such backward
    (its reason is on record), and zeros have to stand in for the others.  ``backward.for_forms(given, forms)``, where
    there is such an attribute, is that for gradients of which some are of other classes than their outputs
    (``CapturedGraph.tangent_forms``), and takes the plain tensors in these.  ``backward.until(given, stops)``, where
    there is such an attribute, is that from graph outputs to tensors that they are computed of
    (``CapturedGraph.stops``), whose gradients it gives behind those of the inputs.  ``backward.recorded()``, where
    there is such an attribute, is the program's graph as autograd records it op by op, for gradients of gradients;
    ``backward.recorded(reason)`` for gradients that no compiled backward computes.  First result.
    """


@hookspec
def turret_wrap_runtime(
    context: CompileContext, function: BoxedCallable, partitioned: PartitionedGraph, role: Role
) -> BoxedCallable | None:
    """Wrap an executable.  ``role`` is ``"inference"``, ``"forward"`` or ``"backward"``.  In turn: each gets what
    the one before returned, and None leaves it as it is.

    A plugin that has a ``cache_key`` and does not name ``partitioned`` leaves the cache on: it wraps what is loaded.
    """


@hookspec
def turret_event(event: Event) -> None:
    """Observe: stage started and ended, product made, graph break, recompile, fallback, cache hit.  All."""
