"""Compute equal expressions once."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turret.graph.op_traits import is_pure_call
from turret.hooks.context import CompileContext
from turret.plugins.graph_pass.visible import VisibleStorage

_UNINITIALIZED = frozenset({torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default})
_TAGS = ("recompute", "ac_graph_id")


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Merge pure calls with the same target and arguments; values that leave the graph stay apart.

    Calls with different checkpoint tags are not merged: one is to be saved and the other to be recomputed.
    """
    visible = VisibleStorage(module.graph)
    known: dict[Any, fx.Node] = {}
    changed = False
    for node in list(module.graph.nodes):
        key = _key(node)
        if key is None:
            continue
        first = known.setdefault(key, node)
        if first is not node and visible.can_merge(node, first):
            visible.replace(node, first)
            changed = True
    return changed


def _key(node: fx.Node) -> Any | None:
    """What makes a call equal to another, or None for a call that must stay on its own."""
    if node.op == "get_attr":
        return (node.op, node.target)
    if not is_pure_call(node) or node.target in _UNINITIALIZED:
        return None
    tags = tuple(node.meta.get(tag) for tag in _TAGS)
    return (node.target, _freeze(node.args), _freeze(node.kwargs), tags)


def _freeze(value: Any) -> Any:
    """A hashable stand-in; numbers carry their type and text, so that 1, 1.0, True, 0.0 and -0.0 all differ."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return tuple((key, _freeze(item)) for key, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _freeze((value.start, value.stop, value.step)))
    if isinstance(value, (int, float, complex)):
        return (type(value).__name__, repr(value))
    return value
