"""Keep ``meta["val"]`` true after a graph was edited: re-run ops under the fake mode where an input changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.graph.op_traits import defines_unbacked_symbols
from turret.torch_compat.trees import pytree


def value_of(argument: Any) -> Any:
    """The fake value of a node, or the argument itself."""
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


def fake_mode_of(graph: fx.Graph) -> Any | None:
    """The fake tensor mode that the graph's values belong to, or None when it has no fake tensors."""
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            mode = getattr(value, "fake_mode", None)
            if mode is not None:
                return mode
    return None


def compute_value(node: fx.Node, fake_mode: Any) -> Any:
    """What a call returns on the fake values of its arguments; whatever error the op raises passes through."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    assert callable(node.target), node
    if fake_mode is None:
        return node.target(*args, **kwargs)
    with fake_mode, torch.no_grad():
        return node.target(*args, **kwargs)


_KEPT = ("stack_trace", "recompute", "ac_graph_id")


def valued_call(
    graph: fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    fake_mode: Any,
    kwargs: dict[str, Any] | None = None,
    origin: fx.Node | None = None,
) -> fx.Node:
    """A new call with its value; from ``origin`` it has where it stems from, and whether it is computed again."""
    node = graph.call_function(target, args, kwargs)
    if origin is not None:
        node.meta = {key: origin.meta[key] for key in _KEPT if key in origin.meta}
    node.meta["val"] = compute_value(node, fake_mode)
    return node


def same_layout(old: Any, new: Any) -> bool:
    """Whether two values agree in dtype, device, shape, strides and in what their memory means: conjugated, negated.

    Lists and tuples are compared element by element.
    """
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return (
            old.dtype == new.dtype
            and old.device == new.device
            and same_sizes(old.shape, new.shape)
            and same_sizes(old.stride(), new.stride())
            and old.is_conj() == new.is_conj()
            and old.is_neg() == new.is_neg()
        )
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(same_layout, old, new))
    return type(old) is type(new)


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal; those with sizes that depend on data if they are written the same."""
    return len(one) == len(other) and all(map(_same_size, one, other))


def _same_size(one: Any, other: Any) -> bool:
    if type(one) is int and type(other) is int:
        return one == other
    if free_unbacked_symbols(one) or free_unbacked_symbols(other):
        return type(one) is type(other) and one.node.expr == other.node.expr
    return bool(one == other)


def propagate(graph: fx.Graph, changed: set[fx.Node], fake_mode: Any) -> set[fx.Node]:
    """Recompute the values of all calls downstream of ``changed``; returns every node whose layout is now another.

    A call that gives numbers keeps its value, in which they are: executables lay its results out as that says.
    """
    dirty = set(changed)
    for node in graph.nodes:
        if node.op != "call_function" or node in changed or dirty.isdisjoint(node.all_input_nodes):
            continue
        if defines_unbacked_symbols(node):
            continue
        value = compute_value(node, fake_mode)
        if not same_layout(node.meta.get("val"), value):
            dirty.add(node)
        node.meta["val"] = value
    return dirty
