"""Nodes of autograd for derived outputs: who asks for the gradient of a result gets all of it.

Of what a graph gives, some outputs are derived from others: ``hidden, loss = model(x)``.  One node for all would lead
from ``loss`` to the inputs past ``hidden``, and whoever hooks that, has it retain its gradient or asks
``torch.autograd.grad`` for it, would see what flows to it from outside of the graph alone.  So outputs that were
computed of tensors that the caller sees have nodes of their own, which lead to these.

As long as nobody looks, nothing is computed on the way: such a node hands its gradients on, and the node that leads to
the inputs runs the one backward of all.  Where somebody is told of the gradients of what a node leads to, it computes
them by a backward that ends there.
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
from turret.torch_compat.autograd import current_graph_task, runs_node

Until = Callable[[Any, Mapping[int, Any], tuple[int, ...], Callable[[], list[torch.Tensor]]], Sequence[Any]]
"""``until(root, gradients by graph outputs, stops, leading)``: gradients of the inputs, then of the stops.

``root`` is the node that leads to the inputs, ``leading()`` are tensors whose gradients go to the stops."""

_HOOKED = (
    "the gradient was asked for of a result whose gradient goes through a hook that compiled code registered, and that "
    "other results were computed of; have that hook registered by code that is not compiled (turret.disable)"
)


@attrs.frozen
class Group:
    """Graph outputs that were computed of the same tensors that the caller sees (``GraphSignature.visible``)."""

    outputs: tuple[int, ...]
    sources: tuple[int, ...]
    is_hooked: bool
    """Whether gradients of a source go through a hook of the program's own."""


@attrs.define(eq=False)
class Passing:
    """What comes down to the node that leads to the inputs in one backward: gradients of graph outputs, and, from where
    backwards that end before have run, gradients of the inputs."""

    tangents: dict[int, Any] = attrs.field(factory=dict)
    found: Sequence[Any] | None = None

    def with_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Gradients of all graph outputs, of which some came to the node itself."""
        return [self.tangents.get(n) if gradient is None else gradient for n, gradient in enumerate(gradients)]

    def added(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Gradients of the inputs with those from above."""
        if self.found is None:
            return tuple(gradients)
        return tuple(b if a is None else a if b is None else a + b for a, b in zip(gradients, self.found, strict=True))


@attrs.define(eq=False)
class Backwards:
    """What comes down in those backwards over one call of a forward that are under way, by their numbers."""

    passing: dict[int, Passing] = attrs.field(factory=dict)

    def running(self) -> Passing:
        """That of the backward that runs."""
        return self.passing.setdefault(current_graph_task(), Passing())

    def finished(self) -> Passing:
        """That of the backward that runs, for the last node."""
        return self.passing.pop(current_graph_task(), None) or Passing()


@attrs.define(eq=False)
class Call:
    """One call of a forward until all its results have nodes: derived outputs that their nodes are to return, and what
    these lead to the ``root`` by."""

    made: dict[int, torch.Tensor]
    backwards: Backwards
    root: Any = None
    anchor: torch.Tensor | None = None


class DerivedOutputs:
    """The derived outputs of a graph: how high they lie over the others, and their nodes."""

    def __init__(self, signature: GraphSignature) -> None:
        self._visible = signature.visible
        described = signature.graph_outputs
        known: dict[int | None, int] = {None: 0}

        def level_of(n: int | None) -> int:
            if n not in known:
                assert n is not None  # known from the start
                sources = (self._visible[k].graph_output for k in described[n].computed_of)
                known[n] = max((1 + level_of(source) for source in sources), default=0)
            return known[n]

        self.levels = tuple(map(level_of, range(len(described))))
        """The level of each graph output: one above those of the outputs that it was derived from."""
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for n, level in enumerate(self.levels):
            if level:
                groups.setdefault((level, described[n].computed_of), []).append(n)
        self._groups: list[list[tuple[Group, type[torch.autograd.Function]]]] = [[] for _ in range(max(self.levels))]
        self._found = [
            (level, Group(tuple(outputs), sources, any(self._visible[k].hooked for k in sources)))
            for (level, sources), outputs in groups.items()
        ]
        self._derived = frozenset(n for n, level in enumerate(self.levels) if level)
        self._has_inputs = any(v.is_input for v in self._visible)
        self._saved: frozenset[int] | None = None

    def bind(self, until: Until) -> None:
        """Make the nodes, with what computes gradients as far as others."""
        self._part = nodes.native().part
        for level, group in self._found:
            self._groups[level - 1].append((group, _node(group, until)))

    def take(self, results: Sequence[Any], saved: Sequence[torch.Tensor]) -> tuple[list[Any], Call]:
        """``results`` with None for the derived ones, and these.

        Of those in the memory of ``saved`` ones the program gets an alias: what is saved would lead to itself through
        the nodes.  Which these are is taken from the first call.
        """
        if self._saved is None:
            memories = {value.untyped_storage()._cdata for value in saved}
            self._saved = frozenset(n for n in self._derived if results[n].untyped_storage()._cdata in memories)
        left, made = list(results), {}
        for n in self._derived:
            made[n] = results[n].detach() if n in self._saved else results[n]
            left[n] = None
        return left, Call(made, Backwards())

    def begun(self, results: list[Any]) -> Call | None:
        """The call that the results are of, taken from behind them; None: autograd records none of it."""
        count = len(self.levels)
        if len(results) == count:
            return None
        call: Call = results[count]
        call.anchor = results[count + 1]
        call.root = call.anchor.grad_fn
        del results[count:]
        return call

    def attach(self, level: int, call: Call, results: list[Any], inputs: Sequence[Any], made: Sequence[Any]) -> None:
        """Fill in the results of a level, whose nodes lead to ``inputs`` and to results of the program so far."""
        for group, node in self._groups[level - 1]:
            visible = map(self._visible.__getitem__, group.sources)
            sources = [(inputs if v.is_input else made)[v.index] for v in visible]
            seen = {value.grad_fn for value in sources}
            if self._has_inputs:  # a view that was written to shares its history with what it views
                seen |= {value._base.grad_fn for value in sources if value._base is not None}
            outputs = node.apply(call, seen, call.anchor, *sources)
            self._part(outputs)
            for n, value in zip(group.outputs, outputs, strict=True):
                results[n] = value


def _node(group: Group, until: Until) -> type[torch.autograd.Function]:
    is_observed = nodes.native().is_observed
    nothing = (None,) * (3 + len(group.sources))

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Call, seen: set[Any], anchor: torch.Tensor, *sources: torch.Tensor) -> Any:
            ctx.backwards, ctx.root, ctx.seen = call.backwards, call.root, seen
            ctx.set_materialize_grads(False)
            return tuple(call.made.pop(n) for n in group.outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            arrived = {n: g for n, g in zip(group.outputs, gradients, strict=True) if g is not None}
            is_run, is_followed = runs_node(ctx.root), torch.is_grad_enabled() and not group.is_hooked
            if is_run and not is_followed and not any(map(is_observed, ctx.seen)):
                ctx.backwards.running().tangents |= arrived
                return nothing
            if not arrived:
                return nothing
            if group.is_hooked:
                raise UnsupportedError(_HOOKED)
            torchs_callback = set_torchs_callback(None)
            try:
                found = until(ctx.root, arrived, group.sources, lambda: _leading(ctx))
            finally:
                set_torchs_callback(torchs_callback)
            split = len(found) - len(group.sources)
            if is_run:
                passing = ctx.backwards.running()
                passing.found = passing.added(found[:split])
            return None, None, None, *found[split:]

    keep_torch_out(Compiled.backward)
    return Compiled


def _leading(node: Any) -> list[torch.Tensor]:
    """Tensors without elements whose gradients go where the node's go, behind the anchor."""
    leading_to = nodes.native().leading_to
    return [leading_to(*edge) for edge in node.next_functions[1:]]
