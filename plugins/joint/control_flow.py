"""``torch.cond`` and ``while_loop`` as single calls of the graph, their branches traced to graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _pop_mode_temporarily

from turret.errors import UnsupportedError
from turret.op_traits import storage_root
from turret.plugins.joint.inputs import make_inputs
from turret.plugins.joint.sizes import same_sizes
from turret.plugins.joint.tracer import Tracer

aten = torch.ops.aten


def cond(tracer: Tracer, predicate: Any, true_branch: Any, false_branch: Any, operands: Sequence[Any] = ()) -> Any:
    """One call of ``torch.cond`` over traced branches.  Branches may not mutate; gradients are not supported."""
    if isinstance(predicate, bool):
        from turret.plugins.joint.interpreter import CapturedRun

        return CapturedRun(tracer).inline(true_branch if predicate else false_branch, operands)
    _refuse_gradients("cond", operands)
    with _pop_mode_temporarily():
        branches = [_branch(tracer, module, operands) for module in (true_branch, false_branch)]
        (_, first), (_, second) = branches
        _check_same("cond", first, second)
        results = tuple(_empty_like(v) for v in first)
    nodes = [tracer.recorder.submodule(module) for module, _ in branches]
    diverged: list[Any] = []
    arguments = (tracer.nodes(predicate, diverged), *nodes, tuple(tracer.nodes(list(operands), diverged)))
    return _record(tracer, torch.ops.higher_order.cond, arguments, results)


def while_loop(
    tracer: Tracer, condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    """One call of ``while_loop`` over a traced condition and body."""
    _refuse_gradients("while_loop", (*carried, *additional))
    with _pop_mode_temporarily():
        modules = [_branch(tracer, module, (*carried, *additional)) for module in (condition, body)]
        produced = modules[1][1]
        _check_same("while_loop", produced, list(carried))
        results = tuple(_empty_like(v) for v in produced)
    nodes = [tracer.recorder.submodule(module) for module, _ in modules]
    diverged: list[Any] = []
    arguments = (*nodes, tuple(tracer.nodes(list(carried), diverged)), tuple(tracer.nodes(list(additional), diverged)))
    return _record(tracer, torch.ops.higher_order.while_loop, arguments, results)


def _record(tracer: Tracer, op: Any, arguments: tuple, results: tuple) -> tuple:
    node = tracer.recorder.call(op, arguments, {}, results)
    tracer.track_results(node, results, results)
    return results


def _refuse_gradients(name: str, operands: Sequence[Any]) -> None:
    if torch.is_grad_enabled() and any(isinstance(o, torch.Tensor) and o.requires_grad for o in operands):
        raise UnsupportedError(f"gradients through torch.{name} are not supported in a compiled graph")


def _branch(outer: Tracer, module: Any, operands: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """A branch as a functional graph, and its fake results."""
    from turret.plugins.joint.interpreter import CapturedRun

    if not isinstance(module, fx.GraphModule):
        raise UnsupportedError(f"a branch that is a {type(module).__name__}, not a captured graph")
    tracer = Tracer(outer.fake_mode, outer.table)
    names = [n.target for n in module.graph.nodes if n.op == "placeholder"]
    with torch.no_grad():
        inputs = make_inputs(tracer, list(operands), names, gradients=False)
        with tracer:
            results = pytree.tree_leaves(CapturedRun(tracer).run(module, inputs.values))
        nodes = [_result(tracer, value) for value in results]
        if any(isinstance(v, torch.Tensor) and tracer.tracked(v).storage.version for v in inputs.values):
            raise UnsupportedError("a branch of control flow that mutates its operands")
    tracer.recorder.graph.output(tuple(nodes))
    return fx.GraphModule(tracer.recorder.root, tracer.recorder.graph, class_name="Branch"), results


def _result(tracer: Tracer, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        node = tracer.node(value)
        if storage_root(node).op in ("placeholder", "get_attr"):
            node = tracer.apply(aten.clone.default, node)
        return node
    return tracer.recorder.size(value) if isinstance(value, torch.SymInt) else value


def _check_same(name: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    same = len(one) == len(other) and all(
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype == b.dtype
        and same_sizes(a.shape, b.shape)
        for a, b in zip(one, other, strict=False)
    )
    if not same:
        raise UnsupportedError(f"torch.{name} whose results differ in number, shape or dtype")


def _empty_like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
