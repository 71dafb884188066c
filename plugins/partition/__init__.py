"""The built-in ``turret_partition`` and ``turret_partition_cost`` hooks.

Options: ``partitioner`` is ``"min_cut"`` (default) or ``"save_all"``; ``memory_budget`` in [0, 1] makes the
minimum cut save less and recompute more (1: what is best for time; 0: recompute all that can be).
"""

from __future__ import annotations

from typing import Any

from torch import fx

from turret.hookspecs import hookimpl
from turret.products import JointGraph, PartitionedGraph


@hookimpl
def turret_partition(context: Any, joint: JointGraph) -> PartitionedGraph:
    """Cut by minimum cut or by saving everything; an inference graph passes through as the forward."""
    from turret.plugins.partition.stage import partition

    return partition(context, joint)


@hookimpl
def turret_partition_cost(node: fx.Node) -> float:
    """See ``cost.recompute_cost``."""
    from turret.plugins.partition.cost import recompute_cost

    return recompute_cost(node)
