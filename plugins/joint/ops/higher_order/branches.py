"""Branches of control flow as graphs of their own: what they compute, and the gradients of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.op_traits import erase_unread, is_random_call, storage_root
from turret.plugins.joint.inputs import Inputs, make_inputs
from turret.plugins.joint.interpreter import CapturedRun
from turret.plugins.joint.recorder import BACKWARD
from turret.plugins.joint.tracer import JointTracer
from turret.storage.source_lines import new_graph_module
from turret.torch_compat.dispatch import DisableAutocast, enable_python_dispatcher, pop_dispatch_mode
from turret.torch_compat.trees import pytree

aten = torch.ops.aten


@attrs.frozen(eq=False)
class Branch:
    """A branch as a functional graph of its operands, and what it returns, as fake tensors."""

    module: fx.GraphModule
    results: list[Any]


def trace_branch(run: CapturedRun, module: Any, operands: Sequence[Any]) -> Branch:
    """Trace a branch.  It may not mutate its operands; results in their memory, or in one another's, are copied."""
    with pop_dispatch_mode(), torch.no_grad():
        tracer, _, results = _run(run, module, operands, gradients=False)
        nodes = [_result(tracer, value) for value in results]
    return Branch(_finished(tracer, nodes), results)


def trace_gradient(
    run: CapturedRun, module: Any, operands: Sequence[Any], wanted: Sequence[int], differentiable: Sequence[int]
) -> fx.GraphModule:
    """The gradient of a branch: its operands, then one gradient for each of the results ``differentiable`` -> one
    gradient for each of the operands ``wanted``, zeros for one that has no influence.

    It computes again what it needs of the branch.  ``UnsupportedError`` for one that draws random numbers.
    """
    with pop_dispatch_mode(), torch.enable_grad():
        tracer, inputs, results = _run(run, module, operands, gradients=True)
        if any(is_random_call(node) for node in tracer.recorder.graph.nodes):
            raise UnsupportedError("gradients of a branch that draws random numbers, which would be drawn anew")
        tracer.recorder.tag, tracer.recorder.origin = BACKWARD, None
        tangents = [_tangent(tracer, number, results[number]) for number in differentiable]
        ends = [(results[n], t) for n, t in zip(differentiable, tangents, strict=True) if results[n].requires_grad]
        leaves = [inputs.leaves[n] for n in wanted]
        found: Sequence[Any] = [None] * len(leaves)
        if ends:
            with DisableAutocast(), tracer, enable_python_dispatcher():
                found = torch.autograd.grad([e for e, _ in ends], leaves, [t for _, t in ends], allow_unused=True)
        nodes = [_gradient(tracer, leaf, value) for leaf, value in zip(leaves, found, strict=True)]
    return _finished(tracer, nodes)


def _run(
    run: CapturedRun, module: Any, operands: Sequence[Any], gradients: bool
) -> tuple[JointTracer, Inputs, list[Any]]:
    if not isinstance(module, fx.GraphModule):
        raise UnsupportedError(f"a branch that is a {type(module).__name__}, not a captured graph")
    tracer = run.tracer.beside()
    names = [n.target for n in module.graph.nodes if n.op == "placeholder"]
    inputs = make_inputs(tracer, list(operands), names, gradients)
    with tracer, enable_python_dispatcher():
        results = pytree.tree_leaves(run.under(tracer).run(module, inputs.values))
    if any(isinstance(v, torch.Tensor) and tracer.tracked(v).storage.version for v in inputs.values):
        raise UnsupportedError("a branch of control flow that mutates its operands")
    return tracer, inputs, results


def _finished(tracer: JointTracer, nodes: list[Any]) -> fx.GraphModule:
    graph = tracer.recorder.graph
    graph.output(tuple(nodes))
    erase_unread(graph)
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.requires_grad:
            node.meta["val"] = tracer.alias(value)
    return new_graph_module(tracer.recorder.root, graph, "Branch")


def _result(tracer: JointTracer, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        node = tracer.node(value)
        if storage_root(node).op in ("placeholder", "get_attr"):
            node = tracer.apply(aten.clone.default, node)
        return node
    return tracer.recorder.size(value) if isinstance(value, torch.SymInt) else value


def _tangent(tracer: JointTracer, number: int, value: torch.Tensor) -> torch.Tensor:
    made = empty_like(value)
    tracer.track(made, tracer.recorder.placeholder(f"tangent_{number}", made))
    return made


def _gradient(tracer: JointTracer, leaf: torch.Tensor, value: torch.Tensor | None) -> fx.Node:
    if value is None:
        with tracer:
            value = torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
    return _result(tracer, value)


def empty_like(value: torch.Tensor) -> torch.Tensor:
    """A new fake tensor of a tensor's layout."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


@contextmanager
def untraced() -> Iterator[None]:
    """Outside of the trace under way."""
    with pop_dispatch_mode():
        yield
