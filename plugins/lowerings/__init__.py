"""The built-in lowerings: the core op set as loop programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Placement, StageGraph

if TYPE_CHECKING:
    from turret.ir import LoopProgram


@hookimpl
def turret_lowerings() -> Mapping[Any, Callable]:
    """The same table for every target."""
    from turret.plugins.lowerings.table import lowerings

    return lowerings()


@hookimpl
def turret_lower(graph: StageGraph, placement: Placement, lowerings: Mapping[Any, Callable]) -> LoopProgram:
    """Run each node's lowering once, in order."""
    from turret.plugins.lowerings.table import lower_graph

    return lower_graph(graph, placement, lowerings)
