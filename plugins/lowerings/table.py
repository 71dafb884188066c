"""All lowerings, loaded: one table of ops."""

import functools
from typing import Any

from turret.graph.scalar_ops import when_changed
from turret.ir.lowering import Lowering
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
    "creation",
    "embedding_bag",
    "indexing",
    "lower_graph",
    "lowerings",
    "pointwise",
    "pooling",
    "reductions",
    "scans",
    "scatter",
    "upsampling",
    "views",
]


@functools.cache
def lowerings() -> dict[Any, Lowering]:
    """``OpOverload -> lowering``: what follows from the table of scalar ops, and over it what is written by hand."""
    return {**pointwise.plain_lowerings(), **LOWERINGS}


when_changed(lowerings.cache_clear)
