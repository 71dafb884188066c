"""Graphs that calls of control flow hold, on their way to plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import fx

from turret.hooks.products import StageGraph, Target
from turret.plan import Plan
from turret.plan.executor import load
from turret.torch_compat.operators.ops import HigherOrderOperator


class PlannedBranch(torch.nn.Module):
    """A branch's plan where its graph was: lowering hands the plan on, and who runs the graph around calls it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self._run: Callable[[list[Any]], list[Any]] | None = (
            None  # a cached_property's lock would outlive a fork, in 3.11
        )

    def forward(self, *operands: Any) -> tuple[Any, ...]:
        if self._run is None:
            self._run = load(self.plan)
        return tuple(self._run(list(operands)))


@attrs.frozen(eq=False)
class Branch:
    """The attribute ``name`` of a graph module, an argument of the call ``call``."""

    owner: fx.GraphModule
    call: fx.Node
    name: str

    @property
    def module(self) -> fx.GraphModule:
        module: fx.GraphModule = getattr(self.owner, self.name)
        return module

    @property
    def op(self) -> str:
        assert isinstance(self.call.target, HigherOrderOperator)
        name: str = self.call.target._name
        return name

    def why_not_planned(self) -> str:
        """Why a branch has no plan: one checks the layout of its inputs, which is known for static sizes alone."""
        for node in self.module.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and not (isinstance(value, torch.Tensor) and _is_static(value)):
                return f"{node.name} is no tensor of static sizes"
        return ""

    def graph(self, module: fx.GraphModule, target: Target, name: str) -> StageGraph:
        """What a plan is made of.

        Results of a condition have the strides that the call around says, or their own, which are row-major, where it
        cannot say.
        """
        (results,) = next(n for n in reversed(module.graph.nodes) if n.op == "output").args
        strides: tuple[tuple[int, ...] | None, ...] = (None,) * len(results)
        if self.op == "cond":
            declared = self.call.meta["val"]
            own = [v if _is_static(v) else r.meta["val"] for v, r in zip(declared, results, strict=True)]
            strides = tuple(tuple(v.stride()) if _is_static(v) else None for v in own)
        return StageGraph(module, "inference", target, strides, name=name)

    def replace(self, plan: Plan) -> None:
        """Put the plan in the graph's place."""
        delattr(self.owner, self.name)
        setattr(self.owner, self.name, PlannedBranch(plan))


def branches_of(module: fx.GraphModule) -> Iterator[Branch]:
    """The graphs that calls of control flow in ``module`` hold, each once."""
    seen = set()
    for node in list(module.graph.nodes):
        if node.op == "call_function" and isinstance(node.target, HigherOrderOperator):
            for argument in node.args:
                if isinstance(argument, fx.Node) and argument.op == "get_attr" and argument.target not in seen:
                    seen.add(argument.target)
                    if isinstance(getattr(module, str(argument.target)), fx.GraphModule):
                        yield Branch(module, node, str(argument.target))


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(v, int) for v in (*value.shape, *value.stride(), value.storage_offset()))
