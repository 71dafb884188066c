"""What tracing leaves behind and no later stage wants."""

from __future__ import annotations

import torch
from torch import fx

_TRANSPARENT = frozenset(
    (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default)
)


def clean(module: fx.GraphModule) -> None:
    """Drop dead nodes, and nodes that hand their input on (in a functional graph a detach is nothing)."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _TRANSPARENT:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
