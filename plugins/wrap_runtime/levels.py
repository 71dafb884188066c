"""One node of autograd for each level of a graph's outputs: who asks for the gradient of a result gets all of it.

Of what a graph gives, some outputs are computed of others: ``hidden, loss = model(x)``.  One node for all would lead
from ``loss`` to the inputs past ``hidden``, and whoever hooks that, has it retain its gradient or asks
``torch.autograd.grad`` for it, would see what flows to it from outside of the graph alone.  So outputs have levels, one
above those of the tensors that they are computed of and the caller sees, and each level a node, which leads to these.

As long as nobody looks, nothing is computed on the way: gradients are handed down, and the node of level 0, which leads
to the inputs, runs the one backward of all.  At a level where somebody is told of gradients, the node above computes
them by a backward that ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.frames.frame_hook import keep_torch_out, set_torchs_callback
from turret.graph.autograd.nodes import observation
from turret.hooks.signature import GraphSignature
from turret.torch_compat.autograd import current_graph_task, runs_node

Until = Callable[[Any, Mapping[int, Any], tuple[int, ...]], Sequence[Any]]
"""``until(root, gradients by graph outputs, stops)``: gradients of the inputs, then of the stops; ``root`` is the node
that leads to the inputs."""


@attrs.frozen
class Level:
    """Graph outputs that are computed of tensors that the caller sees.

    ``below`` are those of these tensors (``GraphSignature.visible``) at lower levels that outputs of this or of a
    higher one were computed of; the first ``next_below`` of them are at the level right below.
    """

    outputs: tuple[int, ...]
    below: tuple[int, ...]
    next_below: int


@attrs.define(eq=False)
class Passing:
    """What comes down to the node of level 0 in one backward: gradients of graph outputs, and, from where backwards
    that end before have run, gradients of the inputs."""

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
    """One call of a forward until all its results have nodes: outputs that the nodes of their levels are to return, and
    the nodes so far.  ``anchor`` is a result of the node of level 0 where the next level leads to no other of it."""

    made: dict[int, torch.Tensor]
    backwards: Backwards
    anchor: torch.Tensor | None
    nodes: list[Any] = attrs.field(factory=list)


class Levels:
    """The levels of a graph's outputs, and the nodes of those above level 0."""

    def __init__(self, signature: GraphSignature) -> None:
        self._signature = signature
        described, visible = signature.graph_outputs, signature.visible
        known: dict[int, int] = {}

        def level_of(n: int | None) -> int:
            if n is None:
                return 0
            if n not in known:
                sources = (visible[k].graph_output for k in described[n].computed_of)
                known[n] = 1 + max(map(level_of, sources), default=-1)
            return known[n]

        self.of_output = tuple(map(level_of, range(len(described))))
        """The level of each graph output."""
        of_visible = [level_of(v.graph_output) for v in visible]
        self.levels: list[Level] = []
        for level in range(1, 1 + max(self.of_output, default=0)):
            outputs = tuple(n for n, its in enumerate(self.of_output) if its == level)
            read = {k for n, its in enumerate(self.of_output) if its >= level for k in described[n].computed_of}
            below = sorted((k for k in read if of_visible[k] < level), key=lambda k: -of_visible[k])
            self.levels.append(Level(outputs, tuple(below), sum(of_visible[k] == level - 1 for k in below)))
        first = self.levels[0].below if self.levels else ()
        self._has_anchor = bool(first) and all(visible[k].graph_output is None for k in first)
        self._raised = frozenset(n for n, level in enumerate(self.of_output) if level)
        self._saved: frozenset[int] | None = None
        self._nodes: tuple[type[torch.autograd.Function], ...] = ()

    def bind(self, until: Until) -> None:
        """Make the nodes, with what computes gradients at a level."""
        if self.levels:
            is_observed = observation()
            self._nodes = tuple(_node(level, until, is_observed) for level in self.levels)

    def take(self, results: Sequence[Any], saved: Sequence[torch.Tensor]) -> tuple[list[Any], Call]:
        """``results`` with None for those above level 0, and these.

        Of those in the memory of ``saved`` ones the program gets an alias: what is saved would lead to itself through
        the nodes.  Which these are is taken from the first call.
        """
        if self._saved is None:
            memories = {value.untyped_storage()._cdata for value in saved}
            self._saved = frozenset(n for n in self._raised if results[n].untyped_storage()._cdata in memories)
        left, made = list(results), {}
        for n in self._raised:
            made[n] = results[n].detach() if n in self._saved else results[n]
            left[n] = None
        return left, Call(made, Backwards(), torch.empty(0) if self._has_anchor else None)

    def begun(self, results: list[Any]) -> Call | None:
        """The call that the results of level 0 are of, taken from behind them; None: autograd records none of it."""
        count = len(self.of_output)
        if len(results) == count:
            return None
        call, *anchor = results[count:]
        del results[count:]
        call.anchor = anchor[0] if anchor else None
        call.nodes.append(self._first_node(call, results))
        return call

    def _first_node(self, call: Call, results: Sequence[Any]) -> Any:
        if call.anchor is not None:
            return call.anchor.grad_fn
        described = self._signature.graph_outputs
        return next(results[n].grad_fn for n, o in enumerate(described) if o.differentiable and not self.of_output[n])

    def attach(self, number: int, call: Call, results: list[Any], inputs: Sequence[Any], made: Sequence[Any]) -> None:
        """Fill in the results of a level, whose node leads to ``inputs`` and to results of the program so far."""
        level = self.levels[number - 1]
        below = [(inputs if v.is_input else made)[v.index] for v in (self._signature.visible[k] for k in level.below)]
        seen = {value.grad_fn for value in below[: level.next_below]}
        if number == 1 and call.anchor is not None:
            below.append(call.anchor)
        outputs = self._nodes[number - 1].apply(call, (*seen, call.nodes[-1]), *below)
        for n, value in zip(level.outputs, outputs, strict=True):
            results[n] = value
        call.nodes.append(outputs[0].grad_fn)


def _node(level: Level, until: Until, is_observed: Callable[[Any], bool]) -> type[torch.autograd.Function]:
    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Call, seen: tuple[Any, ...], *below: torch.Tensor) -> Any:
            ctx.backwards, ctx.root, ctx.seen = call.backwards, call.nodes[0], seen
            ctx.set_materialize_grads(False)
            return tuple(call.made.pop(n) for n in level.outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            passing = ctx.backwards.running()
            arrived = zip(level.outputs, gradients, strict=True)
            passing.tangents.update((n, gradient) for n, gradient in arrived if gradient is not None)
            nothing = (None,) * len(ctx.needs_input_grad)
            if not passing.tangents or not any(map(is_observed, ctx.seen)):
                return nothing
            torchs_callback = set_torchs_callback(None)
            try:
                found = until(ctx.root, passing.tangents, level.below)
            finally:
                set_torchs_callback(torchs_callback)
            split = len(found) - len(level.below)
            if runs_node(ctx.root):
                passing.found, passing.tangents = passing.added(found[:split]), {}
            else:  # the backward is for gradients of results alone
                ctx.backwards.finished()
            return None, None, *found[split:], *nothing[2 + len(level.below) :]

    keep_torch_out(Compiled.backward)
    return Compiled
