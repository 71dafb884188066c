"""Remove calls whose result nobody reads and that have no effect."""

from __future__ import annotations

from torch import fx

from turret.graph.op_traits import erase_unread
from turret.hooks.context import CompileContext


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Erase unread calls and constants; inputs and effects stay."""
    return erase_unread(module.graph)
