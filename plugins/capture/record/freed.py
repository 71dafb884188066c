"""Parts of autograd's graph that backwards in a captured graph have freed, and results that hang on them.

Whoever asks such a result for gradients is to hear what eager says, and nothing is to be saved for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from turret.graph.freed_graphs import note_freed
from turret.plugins.capture.errors import Unsupported


class FreedGraphs:
    """Nodes of autograd's graph of the fake tensors, each with the step of the root frame that freed it."""

    def __init__(self) -> None:
        self.steps: dict[Any, int] = {}

    def note(self, nodes: Iterable[Any], step: int) -> None:
        """A backward at a step of the root frame went through these and kept nothing."""
        for node in nodes:
            self.steps.setdefault(node, step)

    def mark(self, graph: fx.Graph, outputs: Collection[fx.Node]) -> None:
        """Record which outputs of the graph have no gradients any more.

        Raises ``Unsupported``, to break at the backward, where some gradients of an output are left.
        """
        if not self.steps:
            return
        for node in dict.fromkeys(outputs):
            value = node.meta.get("example_value")
            if not isinstance(value, torch.Tensor) or value.grad_fn is None:
                continue
            freed = next((n for n in nodes_below([value]) if n in self.steps), None)
            message = None if freed is None else self.refusal(value, freed)
            if message is not None:
                graph.call_function(note_freed, (node, message))

    def refusal(self, value: torch.Tensor, freed: Any) -> str | None:
        """What autograd says where gradients of a tensor are asked for; None where it gives them."""
        leaves = [n.variable for n in nodes_below([value]) if hasattr(n, "variable")]
        said = [_refusal(value, [leaf]) for leaf in leaves]
        if all(said):
            return said[0] if said else None
        if any(said):
            reason = "a result of which some gradients are left after a backward that freed others"
            raise Unsupported(reason, "pass retain_graph=True to that backward", step=self.steps[freed])
        return None


def _refusal(value: torch.Tensor, leaves: list[torch.Tensor]) -> str | None:
    try:
        torch.autograd.grad(value, leaves, torch.empty_like(value), retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        return str(error)
    return None


def nodes_below(tensors: Iterable[torch.Tensor]) -> list[Any]:
    """All nodes of autograd's graph that tensors hang on."""
    found: dict[Any, None] = {}
    pending = [v.grad_fn for v in tensors]
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found[node] = None
            pending += [below for below, _ in node.next_functions]
    return list(found)
