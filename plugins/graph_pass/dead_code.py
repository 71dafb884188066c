"""Remove calls whose result nobody reads and that have no effect."""

from __future__ import annotations

from typing import Any

from torch import fx

from turret.op_traits import is_effectful


def run(module: fx.GraphModule, context: Any = None) -> bool:
    """Erase unread calls and constants; inputs and effects stay."""
    changed = False
    for node in reversed(module.graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not is_effectful(node):
            module.graph.erase_node(node)
            changed = True
    return changed
