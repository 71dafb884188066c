"""Results of a captured graph that hang on what somebody did to a part of autograd's graph.

Of a part that a backward in the captured graph has freed, whoever asks for gradients is to hear what eager says, and
nothing is to be saved for them.  A part that retains its gradient is to have all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from turret.graph.autograd.freed_graphs import note_freed
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
        said = [_refusal(value, [end]) for end in _ends(value)]
        if all(said):
            return said[0] if said else None
        if any(said):
            reason = "a result of which some gradients are left after a backward that freed others"
            raise Unsupported(reason, "pass retain_graph=True to that backward", step=self.steps[freed])
        return None


class RetainedGradients:
    """Fake tensors that retain their gradients, each with the step of the root frame that asked for it.

    One node of autograd gives all results of a compiled graph: what comes to one of them through another is known
    inside of its backward alone, and would be missing from the gradient that is retained.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[torch.Tensor, int]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def note(self, value: torch.Tensor, step: int) -> None:
        """A step of the root frame called ``retain_grad`` of a tensor."""
        self._steps.append((value, step))

    def check(self, outputs: Collection[fx.Node], made_at: Mapping[str, tuple[int, Any]]) -> None:
        """Raise ``Unsupported``, to break ahead of its first use, where other outputs hang on such a tensor.

        ``made_at`` has the steps of the root frame that calls were made in.
        """
        if not self._steps:
            return
        shown: dict[fx.Node, torch.Tensor] = {}
        for node in outputs:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                shown[node] = value
        for retained, step in self._steps:
            others = [v for v in shown.values() if v is not retained]
            if len(others) < len(shown) and retained.grad_fn in nodes_below(others):
                uses = [user.name for node, v in shown.items() if v is retained for user in node.users]
                first = min([step, *(made_at[name][0] for name in uses if name in made_at)])
                reason = "retain_grad of a result that other results are computed from"
                raise Unsupported(reason, "compute those in another compiled function", step=first)


class HookedModules:
    """Modules whose full backward hooks are in the graph: gradients of inputs come through their results alone."""

    def __init__(self) -> None:
        self._hooked: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def note(self, before: torch.Tensor, after: torch.Tensor, step: int) -> None:
        """A step of the root frame hooked a module, between its input and its result."""
        self._hooked.append((before, after, step))

    def check(self, graph: fx.Graph, outputs: Collection[fx.Node]) -> None:
        """Raise ``Unsupported``, to break ahead of the module, where a gradient may get to its input in another way."""
        if not self._hooked:
            return
        inside = any(node.target is torch.autograd.grad for node in graph.nodes)
        values = [node.meta.get("example_value") for node in outputs]
        shown = [v for v in values if isinstance(v, torch.Tensor)]
        for before, after, step in self._hooked:
            if inside or before.grad_fn in nodes_below(shown, short_of=after.grad_fn):
                raise Unsupported("full backward hooks of a module that gradients may go around", step=step)


def _ends(value: torch.Tensor) -> list[Any]:
    """Where the graph of autograd under a tensor ends: leaves, and inputs with a history, which fakes lack."""
    found: list[Any] = []
    met, pending = set(), [value.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        elif node.name() == "torch::autograd::Error":
            found.append(torch.autograd.graph.GradientEdge(node, 0))
        else:
            pending += [below for below, _ in node.next_functions]
    return found


def _refusal(value: torch.Tensor, ends: list[Any]) -> str | None:
    try:
        torch.autograd.grad(value, ends, torch.empty_like(value), retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        return str(error)
    return None


Edge = tuple[Any, int]
"""Of autograd's graph: a node, and which result of it."""


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where a tensor hangs in autograd's graph; a leaf has no node."""
    return tensor.grad_fn, tensor.output_nr


def nodes_below(tensors: Iterable[torch.Tensor], short_of: Any = None) -> list[Any]:
    """All nodes of autograd's graph that tensors hang on; those that lead there in another way than by ``short_of``."""
    return list(dict.fromkeys(node for node, _ in edges_below(tensors, lambda edge: edge[0] is short_of)))


def edges_below(tensors: Iterable[torch.Tensor], is_end: Callable[[Edge], bool]) -> list[Edge]:
    """All edges of autograd's graph that tensors hang on, without those that are an end and what lies behind them."""
    found: dict[Edge, None] = {}
    pending = [edge_of(v) for v in tensors]
    seen: set[Any] = set()
    while pending:
        edge = node, _ = pending.pop()
        if node is None or is_end(edge):
            continue
        found[edge] = None
        if node not in seen:
            seen.add(node)
            pending += node.next_functions
    return list(found)
