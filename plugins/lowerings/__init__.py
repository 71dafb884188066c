"""The built-in lowerings: ATen's closed surface as loop programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turret.hookspecs import hookimpl
from turret.ir import LoopProgram
from turret.plugins.lowerings import (  # noqa: F401
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
from turret.products import Placement, StageGraph


@hookimpl
def turret_lowerings() -> Mapping[Any, Callable]:
    """The same table for every target."""
    return LOWERINGS


@hookimpl
def turret_lower(graph: StageGraph, placement: Placement, lowerings: Mapping[Any, Callable]) -> LoopProgram:
    """Run each node's lowering once, in order."""
    return lower_graph(graph, placement, lowerings)
