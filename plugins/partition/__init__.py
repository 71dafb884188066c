"""The built-in ``turret_partition`` and ``turret_partition_cost`` hooks.

Options: ``partitioner`` is ``"min_cut"`` (default) or ``"save_all"``; ``memory_budget`` in [0, 1] makes the
minimum cut save less and recompute more (1: what is best for time; 0: recompute all that can be).
"""

from __future__ import annotations

from torch import fx

from turret.hooks.config import Option
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import JointGraph, PartitionedGraph


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """Which partitioner cuts, and how much it may save."""
    return (
        Option(
            name="partitioner",
            default="min_cut",
            doc="how the joint graph is cut into forward and backward",
            choices=("min_cut", "save_all"),
        ),
        Option(
            name="memory_budget",
            default=1.0,
            doc="share of the saved activations to keep: 1 is the min-cut's choice, 0 recomputes all it can",
            low=0,
            high=1,
        ),
    )


@hookimpl
def turret_partition(context: CompileContext, joint: JointGraph) -> PartitionedGraph:
    """Cut by minimum cut or by saving everything; an inference graph passes through as the forward."""
    from turret.plugins.partition.stage import partition

    return partition(context, joint)


@hookimpl
def turret_partition_cost(node: fx.Node) -> float:
    """See ``cost.recompute_cost``."""
    from turret.plugins.partition.cost import recompute_cost

    return recompute_cost(node)
