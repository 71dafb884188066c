"""Floats that were seen to change from call to call: inputs of the graph, on which decisions leave a guard."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turret.frames.sources import Source
from turret.plugins.capture.errors import FloatNeeded
from turret.plugins.capture.values.base import Constant, Tracer
from turret.plugins.capture.values.symbols import Symbolic


def as_scalar_tensor(number: float) -> torch.Tensor:
    """A float as the tensor that a graph takes it in."""
    return torch.tensor(number, dtype=torch.float64)


class ChangingFloat(Symbolic):
    """A float that is another one on other calls; it becomes an input of the graph where the graph needs it.

    It comes in as a tensor of one element, and ``item()`` of that is its number: beside tensors it then counts as the
    Python number that it is.
    """

    source: Source

    def __init__(self, t: Tracer, value: float, source: Source) -> None:
        self.t, self.value, self.source = t, value, source
        t.policy.changing.add(source)
        self.made: tuple[fx.Node, Any] | None = None

    def type(self) -> type:
        return float

    def describe(self) -> str:
        return f"the float {self.source}"

    def is_known(self) -> bool:
        return False

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        return self.in_graph()[0]

    @property
    def number(self) -> Any:
        return self.in_graph()[1]

    def in_graph(self) -> tuple[fx.Node, Any]:
        """The node and the symbol that stand for the float, made at first use."""
        if self.made is None:
            self.made = self.t.recorder.float_input(self)
        return self.made

    def truth(self, t: Tracer) -> bool:
        return t.truth(t.compare("!=", self, Constant(0.0)))

    def fixed(self) -> Any:
        raise FloatNeeded(f"{self.describe()}, which changes, where a constant is needed")
