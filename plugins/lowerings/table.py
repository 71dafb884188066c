"""All lowerings, loaded: one table of ops."""

from turret.plugins.lowerings import (
    creation,
    embedding_bag,
    indexing,
    pointwise,
    pooling,
    reductions,
    scans,
    scatter,
    upsampling,
    views,
)
from turret.plugins.lowerings.lower import lower_graph
from turret.plugins.lowerings.registry import LOWERINGS

__all__ = [
    "LOWERINGS",
    "creation",
    "embedding_bag",
    "indexing",
    "lower_graph",
    "pointwise",
    "pooling",
    "reductions",
    "scans",
    "scatter",
    "upsampling",
    "views",
]
