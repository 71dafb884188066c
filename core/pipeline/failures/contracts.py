"""Contracts of products that no other room checks: plans, placements, tables of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turret.errors import PluginError, Stage, StageError, VerificationError
from turret.hooks.products import NodePlacement, Placement, StageGraph
from turret.hooks.registration.blame import owner
from turret.plan import Plan


def check_plan(plan: Any) -> None:
    """Refuse what is no plan."""
    if not isinstance(plan, Plan):
        raise PluginError(f"turret_codegen gave {plan!r}; expected a turret.plan.Plan")


def check_placement(graph: StageGraph, placement: Any) -> None:
    """Refuse what is no placement of a graph's calls."""
    nodes = getattr(placement, "nodes", None)
    if not isinstance(placement, Placement) or not isinstance(nodes, dict):
        raise VerificationError(f"a {type(placement).__name__} is no Placement of {graph.name}")
    for name, placed in nodes.items():
        if not isinstance(placed, NodePlacement) or placed.where not in ("compiled", "eager"):
            raise VerificationError(f"the placement of {name} is {placed!r}; expected NodePlacement, compiled or eager")


def check_table(stage: Stage, plugin: str, table: Any) -> None:
    """Refuse what is no table of functions; None keeps an op whole, among decompositions."""
    if not isinstance(table, Mapping):
        raise StageError(stage, plugin, f"the table is a {type(table).__name__}; expected a mapping of operators")
    for op, function in table.items():
        if not (callable(function) or (function is None and stage == "decompositions")):
            raise StageError(stage, plugin, f"the entry of {op} is {function!r}; expected a function")


def lowering_at_fault(graph: StageGraph, lowerings: Mapping[Any, Callable[..., Any]], error: Any) -> str:
    """The plugin whose lowering made the statement that an error is about, where it is not a built-in one."""
    origins = getattr(getattr(error, "where", None), "origins", ())
    targets = [node.target for node in graph.module.graph.nodes if node.name in origins]
    return next((found for target in targets if (found := owner(lowerings.get(target)))), "")
