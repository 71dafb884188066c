"""One node of autograd for each level of a graph's outputs: who asks for the gradient of an output gets all of it.

Of what a graph gives, some outputs are computed of others: ``hidden, loss = model(x)``.  One node for all would lead
from ``loss`` to the inputs past ``hidden``, and whoever hooks that, has it retain its gradient or asks
``torch.autograd.grad`` for it, would see what flows to it from outside of the graph alone.  So outputs have levels, one
above those of the outputs that they are computed of, and each level a node, which leads to outputs below it.

As long as nobody looks, nothing is computed on the way: gradients are handed down, and the node of level 0, which leads
to the inputs, runs the one backward of all.  At a level whose gradients somebody is told of, the node above computes
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
    """Graph outputs that are computed of others.

    ``below`` are those of lower levels that outputs of this or of a higher one were computed of; the first is of the
    level right below.
    """

    outputs: tuple[int, ...]
    below: tuple[int, ...]


def levels_of(signature: GraphSignature) -> tuple[Level, ...]:
    """The levels above that of the outputs that are computed of no others."""
    described = signature.graph_outputs
    heights: dict[int, int] = {}

    def height(n: int) -> int:
        if n not in heights:
            heights[n] = 1 + max(map(height, described[n].computed_of), default=-1)
        return heights[n]

    found = []
    for level in range(1, 1 + max(map(height, range(len(described))), default=0)):
        above = [n for n in range(len(described)) if heights[n] >= level]
        below = {m for n in above for m in described[n].computed_of if heights[m] < level}
        outputs = tuple(n for n in above if heights[n] == level)
        found.append(Level(outputs, tuple(sorted(below, key=lambda m: (-heights[m], m)))))
    return tuple(found)


@attrs.define(eq=False)
class Passing:
    """What comes down to the node of level 0 in one backward: gradients of graph outputs, and, from where backwards
    that end at some have run, gradients of the inputs."""

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
class Call:
    """What the nodes of one call of a forward share: outputs until their node returns them, and backwards under way."""

    made: dict[int, torch.Tensor]
    passing: dict[int, Passing] = attrs.field(factory=dict)

    def handed_down(self) -> Passing:
        """What comes down in the backward that runs, for the last node, which it is taken from."""
        return self.passing.pop(current_graph_task(), None) or Passing()


class Levels:
    """The nodes above that of level 0, for the calls of one forward."""

    def __init__(self, levels: tuple[Level, ...], until: Until) -> None:
        self.levels = levels
        self.outputs = frozenset(n for level in levels for n in level.outputs)
        """The graph outputs that these nodes return."""
        is_observed = observation()
        self._nodes = tuple(_node(number, level, until, is_observed) for number, level in enumerate(levels, 1))
        self._saved: frozenset[int] | None = None

    def take(self, results: Sequence[Any], saved: Sequence[torch.Tensor]) -> tuple[list[Any], Call]:
        """``results`` with None for the outputs of these nodes, and these.

        Of those in the memory of ``saved`` ones the program gets an alias: what is saved would lead to itself through
        the nodes.  Which these are is taken from the first call.
        """
        if self._saved is None:
            memories = {value.untyped_storage()._cdata for value in saved}
            self._saved = frozenset(n for n in self.outputs if results[n].untyped_storage()._cdata in memories)
        left, made = list(results), {}
        for n in self.outputs:
            made[n] = results[n].detach() if n in self._saved else results[n]
            left[n] = None
        return left, Call(made)

    def attached(self, results: Sequence[Any]) -> list[Any]:
        """The outputs, each with its node; ``results`` are those of level 0, and the ``Call`` behind them."""
        *made, call = results
        for level, node in zip(self.levels, self._nodes, strict=True):
            outputs = node.apply(call, *(made[n] for n in level.below))
            for n, value in zip(level.outputs, outputs, strict=True):
                made[n] = value
        return made


def _node(number: int, level: Level, until: Until, is_observed: Callable[[Any], bool]) -> type[torch.autograd.Function]:
    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Call, *below: torch.Tensor) -> Any:
            ctx.call = call
            ctx.set_materialize_grads(False)
            return tuple(call.made.pop(n) for n in level.outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            passing = ctx.call.passing.setdefault(current_graph_task(), Passing())
            arrived = zip(level.outputs, gradients, strict=True)
            passing.tangents.update((n, gradient) for n, gradient in arrived if gradient is not None)
            if not passing.tangents or not is_observed(_lower(ctx)):
                return (None,) * (1 + len(level.below))
            root = ctx
            for _ in range(number):
                root = _lower(root)
            torchs_callback = set_torchs_callback(None)
            try:
                found = until(root, passing.tangents, level.below)
            finally:
                set_torchs_callback(torchs_callback)
            split = len(found) - len(level.below)
            if runs_node(root):
                passing.found, passing.tangents = passing.added(found[:split]), {}
            else:  # the backward is for gradients of outputs alone
                ctx.call.handed_down()
            return None, *found[split:]

    keep_torch_out(Compiled.backward)
    return Compiled


def _lower(node: Any) -> Any:
    """The node of the level right below."""
    return node.next_functions[0][0]
