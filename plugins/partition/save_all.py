"""The plain partitioner: save every value that the backward reads, recompute nothing but views."""

from __future__ import annotations

from torch import fx

from turret.graph.op_traits import is_view
from turret.graph.partitioning.analysis import JointAnalysis, is_size, is_tensor


def save_everything(analysis: JointAnalysis) -> frozenset[fx.Node]:
    """The values that the backward reads; a view is replaced by what it views, a constant is not saved."""
    saved: set[fx.Node] = set()
    pending = sorted(analysis.needed, key=analysis.order.__getitem__)
    while pending:
        node = pending.pop()
        if (is_tensor(node) and node.op != "get_attr" and not is_view(node)) or is_size(node):
            saved.add(node)
        elif node not in saved:
            pending.extend(node.all_input_nodes)
    return frozenset(saved)
