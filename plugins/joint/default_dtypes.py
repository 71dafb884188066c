"""Calls whose results have the default dtype, in graphs that set it: kernels run under that of the call instead."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.torch_compat.operators.ops import OpOverload

aten = torch.ops.aten


def sets_default_dtype(graph: fx.Graph) -> bool:
    """Whether a captured graph sets the default dtype."""
    return bool(graph.find_nodes(op="call_function", target=torch.set_default_dtype))


def pin_default_dtypes(graph: fx.Graph) -> None:
    """Give each call that would have another dtype under the present default the dtype that it was traced with.

    Constructors take it as their argument; of integers, which count as numbers of the default dtype, the call is given
    these numbers.  To be called within the fake mode of the graph.  Raises ``UnsupportedError`` for a call that neither
    holds to its dtype.
    """
    for node in list(graph.nodes):
        if node.op == "get_attr" and isinstance(node.meta.get("val"), type(None)) and node.users:
            raise UnsupportedError("a graph inside of one that sets the default dtype")
        op = node.target
        if not isinstance(op, OpOverload) or _keeps_dtypes(node, op):
            continue
        _pin(graph, node, op)
        if not _keeps_dtypes(node, op):
            raise UnsupportedError(f"{op} under a default dtype that the graph sets")


def _pin(graph: fx.Graph, node: fx.Node, op: OpOverload) -> None:
    dtype = next(v.dtype for v in _tensors(node.meta["val"]) if v.dtype.is_floating_point or v.dtype.is_complex)
    if any(a.name == "dtype" and a.kwarg_only for a in op._schema.arguments):
        node.kwargs = {**node.kwargs, "dtype": dtype}
        return

    def converted(argument: fx.Node) -> fx.Node:
        value = argument.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.is_complex:
            return argument
        with graph.inserting_before(node):
            made = graph.call_function(aten._to_copy.default, (argument,), {"dtype": dtype.to_real()})
        made.meta.update(node.meta)
        made.meta["val"] = value.to(dtype.to_real())
        return made

    node.args = fx.map_arg(node.args, converted)


def _keeps_dtypes(node: fx.Node, op: OpOverload) -> bool:
    """Whether a call has the dtypes under the present default that it was traced with."""
    expected = [v.dtype for v in _tensors(node.meta["val"])]
    if not any(d.is_floating_point or d.is_complex for d in expected):
        return True
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return [v.dtype for v in _tensors(op(*args, **kwargs))] == expected


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in items if isinstance(v, torch.Tensor)]
