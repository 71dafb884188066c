"""The built-in ``turret_place`` hook: everything is compiled for the target, except what cannot be.

A call runs eagerly when a tensor it reads or makes has a dtype, layout or device that generated kernels do
not compute with, or when its op is outside the core op set and no plugin has a lowering for it.  Under
``torch.use_deterministic_algorithms`` sums by index run eagerly, too: kernels add them up in any order.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from turret.graph.externs import op_name
from turret.graph.obstacles import NAMED, is_named
from turret.graph.op_set import Family, family_of, is_compiled_dtype, why_unsupported
from turret.graph.op_traits import CAPTURED_CALL, is_view_op
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import NodePlacement, Placement, StageGraph, Target
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload
from turret.torch_compat.trees import pytree


@hookimpl
def turret_place(context: CompileContext, graph: StageGraph) -> Placement:
    """Placement of every call node, in graph order."""
    lowered = functools.cache(lambda: _lowered_ops(context, graph.target))
    nodes: dict[str, NodePlacement] = {}
    for node in graph.module.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            nodes[node.name] = _place(node, graph.target, lowered)
    if context.config.cudagraphs and context.config.cudagraph_split_ops:
        nodes |= _named(graph, context.config.cudagraph_split_ops)
    return Placement(nodes)


def _named(graph: StageGraph, names: tuple[str, ...]) -> dict[str, NodePlacement]:
    """Calls that stem from an op which the user leaves out of recordings: they are no part of kernels."""
    calls = [n for n in graph.module.graph.nodes if n.op == "call_function" and isinstance(n.target, _OPS)]
    return {n.name: NodePlacement("eager", NAMED) for n in calls if _is_named(n, names) and not is_view_op(n.target)}


def _is_named(node: fx.Node, names: tuple[str, ...]) -> bool:
    decomposed = node.meta.get("original_aten")
    origin = op_name(decomposed) if isinstance(decomposed, OpOverload) else ""
    return is_named(names, op_name(node.target), origin, node.meta.get(CAPTURED_CALL, ""))


_OPS = (OpOverload, HigherOrderOperator)


def _lowered_ops(context: CompileContext, target: Target) -> frozenset[Any]:
    tables = context.hooks.turret_lowerings(context=context, target=target)
    return frozenset(op for table in tables for op in table)


def _place(node: fx.Node, target: Target, lowered: Any) -> NodePlacement:
    reason = _why_not_values(node, target)
    if not reason:
        reason = why_unsupported(node.target) if node.op == "call_function" else f"a {node.op} node, not an ATen call"
        if reason and node.target in lowered():
            reason = ""
    reason = reason or _why_not_deterministic(node)
    if reason:
        return NodePlacement("eager", reason)
    library = node.op == "call_function" and family_of(node.target) is Family.EXTERN and node.target not in lowered()
    return NodePlacement("compiled", "library kernel" if library else "")


_ADDING = {
    "scatter_add": (), "index_add": (), "embedding_dense_backward": (), "index_put": (True,),
    "_unsafe_index_put": (True,), "scatter": ("add",), "scatter_reduce": ("sum", "mean"),
}  # fmt: skip
"""ATen ops that add up values by index, with the arguments that ask those for it that do other things, too."""


def _why_not_deterministic(node: fx.Node) -> str:
    """Why a sum by index is left to ATen's deterministic algorithm; empty where its order is of no consequence."""
    if not torch.are_deterministic_algorithms_enabled() or not isinstance(node.target, OpOverload):
        return ""
    name, result = node.target._schema.name.removeprefix("aten::"), node.meta.get("val")
    if not isinstance(result, torch.Tensor) or not (result.is_floating_point() or result.is_complex()):
        return ""  # sums of integers are the same in any order
    asking = _ADDING.get(name)
    if asking is None or (asking and not any(_is_one_of(a, asking) for a in (*node.args, *node.kwargs.values()))):
        return ""
    return "torch.use_deterministic_algorithms: kernels add in any order"


def _is_one_of(argument: Any, asking: tuple[Any, ...]) -> bool:
    return isinstance(argument, bool | str) and argument in asking


def _why_not_values(node: fx.Node, target: Target) -> str:
    """Why generated kernels cannot handle one of a call's tensors; empty when they can."""
    if node.op == "call_function" and not isinstance(node.target, _OPS):
        return ""
    for source in (node, *node.all_input_nodes):
        for value in pytree.tree_leaves(source.meta.get("val")):
            if isinstance(value, torch.Tensor) and (reason := why_not_tensor(value, target)):
                return f"{'result' if source is node else source.name}: {reason}"
    return ""


def why_not_tensor(value: torch.Tensor, target: Target) -> str:
    """Why kernels for ``target`` cannot read or write a tensor like this one; empty when they can."""
    if value.layout != torch.strided:
        return f"layout {str(value.layout).removeprefix('torch.')}"
    if value.is_quantized:
        return "quantized tensor"
    if not is_compiled_dtype(value.dtype):
        return f"dtype {str(value.dtype).removeprefix('torch.')}"
    if value.device.type != target.device_type:
        return f"on {value.device}, compiled for {target.device}"
    if target.index is not None and value.device.index not in (None, target.index):
        return f"on {value.device}, compiled for {target.device}"
    return ""
