"""The joint trace: one run of the captured module gives the functional graph and all that is known of its effects.

Fake tensors behave as eager's below autograd's eyes, so the run itself tells what is mutated, what aliases what, where
gradients flow and which strides are seen; for training, gradients of the differentiable outputs are taken in the same
run, and what their formulas call is recorded behind the forward.  New values of mutated inputs are
outputs of the graph that the runtime copies back: the graph itself writes to nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import TurretError, UnsupportedError, VerificationError
from turret.frames.trace_modes import autograd_by_itself
from turret.graph.autograd.freed_graphs import freed_message
from turret.graph.autograd.nodes import stopped
from turret.graph.fakes.sizes import contiguous_strides, is_dense
from turret.graph.lazy_module import lazy_module
from turret.graph.op_traits import erase_unread, is_random_op, names_generator_state
from turret.graph.ops import failing_ops  # noqa: F401  (defines ``turret::fail``)
from turret.graph.wrapper_tensors import TangentForm, WrapperForm, is_wrapper
from turret.hooks.products import CapturedGraph, JointGraph
from turret.hooks.signature import GraphSignature, WrappedGradient
from turret.plugins.joint.default_dtypes import pin_default_dtypes, sets_default_dtype
from turret.plugins.joint.histories import reach, sharing
from turret.plugins.joint.inputs import Inputs, make_inputs
from turret.plugins.joint.interpreter import CapturedRun
from turret.plugins.joint.late_memory import LateMemories
from turret.plugins.joint.ops.eager_kernels import PreferEagerKernels
from turret.plugins.joint.ops.higher_order.table import HIGHER_ORDER
from turret.plugins.joint.ops.numbers import numbers_of_data
from turret.plugins.joint.ops.rules import rule_of
from turret.plugins.joint.outputs import ForwardOutputs, SharedGradients
from turret.plugins.joint.recorder import BACKWARD
from turret.plugins.joint.repeating.replay import CannotReplay, Replays
from turret.plugins.joint.tracer import JointTracer
from turret.plugins.joint.visible import uncut, visible_tensors, with_visible
from turret.torch_compat.dispatch import DisableAutocast, enable_python_dispatcher
from turret.torch_compat.distributed import forget_shardings


def trace(
    captured: CapturedGraph,
    decompositions: Mapping,
    replay: bool = True,
    report: Callable[[str], None] = lambda message: None,
) -> JointGraph:
    """Trace a captured graph.  ``UnsupportedError`` for what cannot be compiled, errors of the user's program
    among it: eager then raises them in the user's own terms.

    With ``replay`` layers that are alike are traced once, of which ``report`` is told; the graph is the same without.
    """
    joined: set[tuple[int, ...]] = set()
    while True:
        try:
            joint, copied = _trace(captured, decompositions, joined, replay)
        except SharedGradients as error:
            joined.add(error.members)
        except CannotReplay:
            replay = False
        else:
            if copied:
                report(f"joint trace: {copied} segments of calls are copies of earlier ones")
            return joint


def _trace(
    captured: CapturedGraph, decompositions: Mapping, joined: set[tuple[int, ...]], replay: bool
) -> tuple[JointGraph, int]:
    """The trace, and how many segments were copied."""
    if names_generator_state(captured.module):  # whose draws are eager's own
        decompositions = {op: function for op, function in decompositions.items() if not is_random_op(op)}
    tracer = JointTracer(captured.fake_mode, decompositions, rule_of)
    replays = Replays(tracer, captured.module.graph) if replay else None
    gradients = captured.grad_enabled and not captured.inference_mode
    names = [n.name for n in captured.module.graph.nodes if n.op == "placeholder"]
    with _quiet(captured.fake_mode, gradients):
        inputs = make_inputs(tracer, captured.example_inputs, names, not captured.inference_mode, joined)
        results = _run(tracer, captured, inputs, replays)
        tracer.numbers.check_assumptions()
        after = torch.is_grad_enabled()
        torch.set_grad_enabled(gradients)
        forward = ForwardOutputs(tracer, inputs)
        tracer.recorder.provenance = {}
        signature = forward.collect(_flat(results), gradients, after if after != gradients else None)
        found: list[Any] = []
        if signature.training:
            _refuse_late_gradients(signature)
            signature = with_visible(signature, forward)
            tracer.late_memory = LateMemories(tracer, inputs, forward, signature, replays is not None)
            try:
                found, reached = _gradients(tracer, inputs, forward, captured, signature)
            except UnsupportedError as refusal:
                _blame_write(refusal, captured.module)
                raise
            signature = tracer.late_memory.described()
            if signature.late_memory or signature.wrapped:
                signature = uncut(signature)
            infos = [attrs.evolve(i, reached_from=r) for i, r in zip(signature.inputs, reached, strict=True)]
            signature = attrs.evolve(signature, inputs=tuple(infos))
    module = _finish(tracer, captured, forward, found)
    joint = JointGraph(
        module=module,
        signature=signature,
        num_forward_outputs=len(forward.nodes),
        fake_mode=captured.fake_mode,
        name=captured.name,
    )
    return joint, 0 if replays is None else replays.copied


def _run(tracer: JointTracer, captured: CapturedGraph, inputs: Inputs, replays: Replays | None) -> Any:
    """Run the captured module under the tracer; what does not even run on fake tensors by itself is refused."""
    try:
        with PreferEagerKernels(), tracer, enable_python_dispatcher():
            return CapturedRun(tracer, HIGHER_ORDER).run(captured.module, inputs.values, replays)
    except TurretError:
        raise
    except Exception as error:
        forget_shardings()
        _refuse_if_fakes_fail(captured)
        raise VerificationError(f"the trace failed where fake tensors do not: {error!r}") from error


def _refuse_if_fakes_fail(captured: CapturedGraph) -> None:
    plain = JointTracer(captured.fake_mode, {}, rule_of)
    names = [n.name for n in captured.module.graph.nodes if n.op == "placeholder"]
    values = make_inputs(plain, captured.example_inputs, names, not captured.inference_mode).values
    try:
        with torch.set_grad_enabled(captured.grad_enabled and not captured.inference_mode):
            captured.module(*values)
    except Exception as error:
        raise UnsupportedError(f"the graph does not run on fake tensors: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _quiet(fake_mode: Any, gradients: bool) -> Iterator[None]:
    """The modes of the run: the user's autocast, gradients as captured, nothing else of the caller's."""
    cached = torch.is_autocast_cache_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(autograd_by_itself())
        stack.enter_context(fake_mode)
        stack.enter_context(numbers_of_data(fake_mode.shape_env))
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(cached)


def _flat(results: Any) -> list[Any]:
    if not isinstance(results, (list, tuple)):
        raise UnsupportedError(f"the captured graph returned {type(results).__name__}, expected a tuple")
    if any(isinstance(r, (list, tuple, dict)) for r in results):
        raise UnsupportedError("the captured graph returned a nested structure, expected flat outputs")
    return list(results)


def _blame_write(refusal: UnsupportedError, module: fx.GraphModule) -> None:
    """A refused backward that writes to tensors from before is one for Python to run: say by which call it came."""
    writing = (n.name for n in module.graph.nodes if n.op == "call_function" and getattr(n.target, "written", ()))
    refusal.call = refusal.call or next(writing, None)


def _refuse_late_gradients(signature: GraphSignature) -> None:
    for number, info in enumerate(signature.inputs):
        if info.requires_grad_after is not None:
            raise UnsupportedError(f"input {number} had requires_grad changed inside a graph that needs gradients")


def _gradients(
    tracer: JointTracer, inputs: Inputs, forward: ForwardOutputs, captured: CapturedGraph, signature: GraphSignature
) -> tuple[list[Any], list[tuple[int, ...]]]:
    """For each input the node of its gradient, or None, and the graph outputs that the gradient comes from; behind the
    gradients what the backward writes to late memory.

    Gradients are asked of ``captured.tangents``; None: of all graph outputs that are differentiable.  Those of
    ``captured.stops`` come behind those of the inputs."""
    recorder = tracer.recorder
    recorder.tag, recorder.origin = BACKWARD, None
    numbers, forms = _differentiable(forward, captured.tangents), dict(captured.tangent_forms)
    outputs = [forward.tensors[n] for n in numbers]
    tangents, given = _tangents(tracer, forward, numbers, forms)
    leaves = [*inputs.leaves, *(g.leaf for g in inputs.groups if g.node is not None)]
    ends = visible_tensors(signature, forward, captured.stops)
    wanted = [n for n, v in enumerate(leaves) if isinstance(v, torch.Tensor) and v.requires_grad]
    found: list[Any] = [None] * (len(leaves) + len(ends))
    reached: list[tuple[int, ...]] = [()] * len(leaves)
    for n, others in zip(numbers, sharing(outputs), strict=True):
        forward.described[n] = attrs.evolve(forward.described[n], shares_with=tuple(numbers[m] for m in others))
    if wanted:
        for position, sources in zip(wanted, reach(outputs, [leaves[n] for n in wanted]), strict=True):
            reached[position] = tuple(numbers[s] for s in sorted(sources))
        # Backward runs outside autocast in eager, as PyTorch asks of its users.
        late = tracer.late_memory
        with DisableAutocast(), tracer, enable_python_dispatcher(), stopped(ends):
            gradients = _take(outputs, [*(leaves[n] for n in wanted), *ends], tangents)
        if any(tracer.tracked(t).storage.version for t in given):
            raise UnsupportedError("a backward of the program's own writes to the gradient that it is given")
        places = [*wanted, *range(len(leaves), len(leaves) + len(ends))]
        nodes, further, wrapped = _gradient_nodes(tracer, dict(zip(places, gradients, strict=True)))
        found = [*map(nodes.get, range(len(found))), *further, *late.values(gradients)]
        late.signature = attrs.evolve(late.signature, wrapped=wrapped, stops=captured.stops)
    return found, reached


def _gradient_nodes(
    tracer: JointTracer, gradients: Mapping[int, Any]
) -> tuple[dict[int, fx.Node | None], list[fx.Node], tuple[WrappedGradient, ...]]:
    """The nodes of gradients, of wrappers those of the first tensors in them; the others; what wrappers these are."""
    nodes: dict[int, fx.Node | None] = {}
    further: list[fx.Node] = []
    wrapped = []
    for number, gradient in gradients.items():
        if not is_wrapper(type(gradient)):
            nodes[number] = None if gradient is None else tracer.node(gradient)
            continue
        form = WrapperForm.of(gradient)
        if not form.is_static():
            raise UnsupportedError(f"a gradient that is a {form.kind.__qualname__} of changing sizes")
        nodes[number], *rest = map(tracer.node, form.parts(gradient))
        wrapped.append(WrappedGradient(number, form))
        further += rest
    return nodes, further, tuple(wrapped)


def _differentiable(forward: ForwardOutputs, given: Sequence[int] | None) -> list[int]:
    """Graph outputs that gradients are given for: some of the differentiable ones, or all."""
    differentiable = [n for n, described in enumerate(forward.described) if described.differentiable]
    return differentiable if given is None else [n for n in differentiable if n in given]


def _take(outputs: list[Any], inputs: list[Any], tangents: list[Any]) -> Sequence[Any]:
    """Gradients; what autograd refuses here it would refuse in eager's backward, which then is where to learn of it."""
    if refused := _refused(outputs, inputs, tangents):
        return refused
    try:
        return torch.autograd.grad(outputs, inputs, tangents, allow_unused=True)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"autograd cannot run the backward: {error}") from error


def _refused(outputs: list[Any], inputs: list[Any], tangents: list[Any]) -> list[Any]:
    """Gradients that raise, where a backward in the graph has freed the history of an output; else none."""
    for output, tangent in zip(outputs, tangents, strict=True):
        message = freed_message(output)
        if message is not None and is_wrapper(type(tangent)):
            raise UnsupportedError(f"a gradient that is a {type(tangent).__qualname__}, of a history that is freed")
        if message is not None:
            fail = torch.ops.turret.fail.default
            return [fail(tangent, v.shape, v.dtype, v.device, "RuntimeError", message) for v in inputs]
    return []


def _tangent(tracer: JointTracer, number: int, value: torch.Tensor) -> torch.Tensor:
    """A fake gradient of a forward output, in the strides that the runtime will bring gradients to."""
    stride = value.stride() if is_dense(value.shape, value.stride()) else contiguous_strides(value.shape)
    made = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    node = tracer.recorder.placeholder(f"tangent_{number}", made)
    tracer.track(made, node)
    return made


def _tangents(
    tracer: JointTracer, forward: ForwardOutputs, numbers: list[int], forms: Mapping[int, TangentForm]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Fake gradients of forward outputs, of which some are wrappers, and the tangents of the graph: plain ones, and
    those in the wrappers."""
    gradients, tangents = [], []
    for number in numbers:
        if number not in forms:
            gradients.append(_tangent(tracer, number, forward.tensors[number]))
            tangents.append(gradients[-1])
            continue
        parts = []
        for place, (shape, stride, dtype, device) in enumerate(forms[number].layouts):
            parts.append(torch.empty_strided(shape, stride, dtype=dtype, device=device))
            tracer.track(parts[-1], tracer.recorder.placeholder(f"tangent_{number}_{place}", parts[-1]))
        tangents += parts
        gradients.append(forms[number].form.build(parts))
    return gradients, tangents


def _finish(
    tracer: JointTracer, captured: CapturedGraph, forward: ForwardOutputs, gradients: list[Any]
) -> fx.GraphModule:
    graph = tracer.recorder.graph
    tracer.numbers.check_assumptions()
    graph.output((*forward.nodes, *gradients))
    erase_unread(graph)
    with captured.fake_mode, torch.no_grad():
        _forget_history(tracer, graph)
        if sets_default_dtype(captured.module.graph):
            pin_default_dtypes(graph)
    return lazy_module(tracer.recorder.root, graph, "Joint")


def _forget_history(tracer: JointTracer, graph: fx.Graph) -> None:
    """Fake values that autograd knows nothing of; nodes with one value still have one."""
    known: dict[int, torch.Tensor] = {}

    def plain(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        if id(value) not in known:
            known[id(value)] = tracer.alias(value)
        return known[id(value)]

    values = [node.meta.get("val") for node in graph.nodes]
    for node, value in zip(graph.nodes, values, strict=True):
        if isinstance(value, torch.Tensor):
            node.meta["val"] = plain(value)
        elif isinstance(value, (list, tuple)):
            node.meta["val"] = type(value)(plain(v) for v in value)
