"""Nodes of autograd for derived outputs: who asks for the gradient of a result gets all of it.

Of what a graph gives, some outputs are derived from others: ``hidden, loss = model(x)``.  One node for all would lead
from ``loss`` to the inputs past ``hidden``, and whoever hooks that, has it retain its gradient or asks
``torch.autograd.grad`` for it, would see what flows to it from outside of the graph alone.  So outputs that were
computed of tensors that the caller sees have nodes of their own, in front of the one for all, which lead to these, too.

As long as nobody looks, nothing is computed on the way: such a node hands its gradients on to the one for all, which
runs one backward.  Where somebody is told of the gradients of what a node leads to, it computes them by a backward that
ends there (``core/graph/autograd/nodes.cpp`` decides).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.errors import UnsupportedError
from turret.frames.frame_hook import keep_torch_out, set_torchs_callback
from turret.graph.autograd import nodes
from turret.hooks.signature import GraphSignature
from turret.plugins.wrap_runtime.double_backward import Begun
from turret.torch_compat.autograd import current_graph_task, runs_node

Until = Callable[[Any, Mapping[int, Any], tuple[int, ...], Callable[[], list[torch.Tensor]]], Sequence[Any]]
"""``until(root, gradients by graph outputs, stops, leading)``: gradients of the inputs, then of the stops.

``root`` is the node that leads to the inputs, ``leading()`` are tensors whose gradients go to the stops."""

_UNCUT = (
    "the gradient was asked for of a result that other results of the same graph were computed of, and the backward of "
    "this graph cannot end there: gradients go through a hook that it calls, or it writes to tensors, or it gives "
    "gradients of other classes; have the hook registered, or the other results computed, by code that is not compiled "
    "(turret.disable)"
)


@attrs.frozen
class Group:
    """Graph outputs that were computed of the same tensors that the caller sees (``GraphSignature.visible``).

    ``is_uncut``: no backward can end at one of these.
    """

    outputs: tuple[int, ...]
    sources: tuple[int, ...]
    is_uncut: bool


class FromAbove:
    """What backwards which end before the inputs leave for others of the same backward, by its number."""

    def __init__(self) -> None:
        self._found: dict[int, Sequence[Any]] = {}
        self._begun: tuple[int, Begun] | None = None

    def add(self, gradients: Sequence[Any]) -> None:
        """Keep gradients of the inputs for the node that leads to these."""
        task = current_graph_task()
        self._found[task] = _sums(gradients, self._found[task]) if task in self._found else gradients

    def added(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Gradients of the inputs with those from above; nothing is kept any more."""
        self._begun = None
        found = self._found.pop(current_graph_task(), None)
        return gradients if found is None else _sums(gradients, found)

    def begun(self, begin: Callable[[], Begun]) -> Begun:
        """The graph, run once more for all in this backward."""
        task, known = current_graph_task(), self._begun
        if known is None or known[0] != task:
            known = self._begun = task, begin()
        return known[1]


def _sums(gradients: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
    pairs = zip(gradients, others, strict=True)
    return tuple(other if own is None else own if other is None else own + other for own, other in pairs)


class DerivedOutputs:
    """The derived outputs of a graph: how high they lie over the others, and what gives them nodes."""

    def __init__(self, signature: GraphSignature) -> None:
        self._visible, self._nearest = signature.visible, signature.nearest
        self.levels = _levels(signature)
        """The level of each graph output: one above those of the outputs that it was derived from."""
        described = signature.graph_outputs
        found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for n, level in enumerate(self.levels):
            if level:
                found.setdefault((level, described[n].computed_of), []).append(n)
        self._groups: list[list[Group]] = [[] for _ in range(max(self.levels))]
        for (level, sources), outputs in found.items():
            is_uncut = any(self._visible[k].is_uncut for k in sources)
            self._groups[level - 1].append(Group(tuple(outputs), sources, is_uncut))
        self._native: dict[Group, Any] = {}
        self._derive: Callable[..., None]

    def bind(self, until: Until) -> None:
        """Set what computes gradients as far as the tensors that outputs were computed of."""
        native = nodes.native()
        self._derive = native.derive
        for groups in self._groups:
            self._native |= {group: native.group(_cut(group, until)) for group in groups}

    def attach(self, level: int, results: Sequence[Any], inputs: Sequence[Any], made: Sequence[Any]) -> None:
        """Give the results of a level nodes, which lead to ``inputs`` and to ``made`` results of the program."""
        for group in self._groups[level - 1]:
            visible = map(self._visible.__getitem__, group.sources)
            sources = [(inputs if v.is_input else made)[v.index] for v in visible]
            nearest = None
            if self._nearest:
                of_outputs = (self._visible[k].graph_output for k in group.sources)
                nearest = [results[n] for n in of_outputs if n is not None and self.levels[n]]
            self._derive(self._native[group], [results[n] for n in group.outputs], sources, nearest)


def _levels(signature: GraphSignature) -> tuple[int, ...]:
    described, visible = signature.graph_outputs, signature.visible
    below = [{visible[k].graph_output for k in o.computed_of} - {None} for o in described]
    levels: dict[int, int] = {}
    stack = list(range(len(described)))
    while stack:
        n = stack[-1]
        pending = [m for m in below[n] if m is not None and m not in levels]
        if pending:
            stack += pending
            continue
        known = [levels[m] for m in below[n] if m is not None]
        levels[stack.pop()] = 1 + max(known, default=0 if described[n].computed_of else -1)
    return tuple(levels[n] for n in range(len(described)))


def _cut(group: Group, until: Until) -> Callable[..., Sequence[Any]]:
    """``cut(root, gradients, numbers, edges)``: gradients of those sources, where the ``edges`` lead to; those of the
    inputs are kept for the root."""

    def cut(
        root: Any, gradients: Sequence[Any], numbers: Sequence[int], edges: Sequence[tuple[Any, int]]
    ) -> Sequence[Any]:
        if group.is_uncut:
            raise UnsupportedError(_UNCUT)
        given = {n: g for n, g in zip(group.outputs, gradients, strict=True) if g is not None}
        stops = tuple(group.sources[n] for n in numbers)
        torchs_callback = set_torchs_callback(None)
        try:
            found = until(root, given, stops, lambda: [nodes.native().leading_to(*edge) for edge in edges])
        finally:
            set_torchs_callback(torchs_callback)
        split = len(found) - len(stops)
        if runs_node(root):
            root.from_above.add(found[:split])
        return tuple(found[split:])

    keep_torch_out(cut)
    return cut
