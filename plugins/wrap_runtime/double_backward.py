"""Gradients of gradients: the captured graph runs once more, op by op, and autograd differentiates that twice.

A compiled backward keeps no graph of its own.  Where gradients are asked for with ``create_graph=True`` they are the
compiled ones; only when their own gradient is wanted is the program's graph run again on the inputs of the forward, and
its gradients taken with autograd recording.  Inputs are found again by weak references, so that what eager would let go
of is let go of, and their versions show whether somebody wrote to them meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.errors import DoubleBackwardError
from turret.frames.frame_hook import keep_torch_out
from turret.graph.autograd.nodes import stopped
from turret.graph.wrapper_tensors import part_behind
from turret.hooks.signature import GraphSignature, Mutation, OutputKind
from turret.plugins.wrap_runtime.edges import values, without_edges

Outputs = Sequence[Any]


def error(reason: str) -> DoubleBackwardError:
    """What is raised where a gradient of a gradient cannot be had."""
    return DoubleBackwardError(
        f"a gradient of a gradient was asked for, but {reason}; run the forward without turret.compile where double "
        "backward (create_graph=True) is needed"
    )


def obstacle(signature: GraphSignature) -> str:
    """Why a graph cannot be run once more in place of its forward; empty where it can."""
    if signature.bases or any(_is_changed(info) for info in signature.inputs):
        return "the forward changes its inputs, so that running it once more would start from other values"
    if any(m.written and m.made for m in signature.late_memory):
        return "the backward writes to tensors that the forward made"
    if signature.wrapped:
        return "a gradient is of another class than what it is the gradient of"
    if signature.numbers:
        return "sizes of the forward depend on data"
    known = {o.index for o in signature.outputs if o.kind is OutputKind.FRESH}
    outputs = enumerate(signature.graph_outputs)
    if signature.hidden or any(o.differentiable and (n not in known or o.view_of is not None) for n, o in outputs):
        return "an output of the forward is a view of what it computes"
    return ""


def _is_changed(info: Any) -> bool:
    return (
        info.mutation is not Mutation.NONE
        or info.replaced_by is not None
        or info.requires_grad_after is not None
        or info.negated
    )


Kept = tuple[list[weakref.ref], list[int], list[Any]]
"""What one call of a forward leaves behind to find its inputs by: references, versions, and what is no tensor."""


class Inputs:
    """Finds the inputs of a call again when its backward runs.

    Parameters are found where autograd keeps them, at the end of the node's edges, and so are tensors in a wrapper,
    taken out of it once more; other tensors are known weakly, and what is no tensor is kept.  Versions are noted but
    for parameters that the forward saves, which autograd looks at.
    """

    def __init__(self, apart: Sequence[int] = ()) -> None:
        """``apart``: inputs that the node has no edges to."""
        self._apart, self._known = apart, False
        self._tensors: tuple[int, ...] = ()
        self._edges: tuple[int, ...] = ()
        self._weak: tuple[int, ...] = ()
        self._counted: tuple[int, ...] = ()
        self._plain: tuple[int, ...] = ()

    def keep(self, inputs: Sequence[Any], saved: Sequence[Any]) -> Kept:
        """What to find ``inputs`` by; ``saved`` are the tensors that the forward saves for its backward."""
        if not self._known:
            self._learn(inputs, saved)
        return (
            [weakref.ref(inputs[n]) for n in self._weak],
            [inputs[n]._version for n in self._counted],
            [inputs[n] for n in self._plain],
        )

    def _learn(self, inputs: Sequence[Any], saved: Sequence[Any]) -> None:
        among = set(map(id, saved))
        tensors = [n for n, v in enumerate(inputs) if isinstance(v, torch.Tensor)]
        self._plain = tuple(n for n in range(len(inputs)) if n not in tensors)
        self._edges = tuple(n for n in tensors if n not in self._apart)
        leaves = [n for n in self._edges if inputs[n].is_leaf and inputs[n].requires_grad]
        self._weak = tuple(n for n in tensors if n not in leaves)
        alone = [n for n in tensors if n in self._weak or id(inputs[n]) not in among]
        self._counted = tuple(n for n in alone if not inputs[n].is_inference())
        self._tensors, self._known = tuple(tensors), True

    def find(self, node: Any, kept: Kept) -> list[Any]:
        """The inputs of the call whose autograd node this is; ``DoubleBackwardError``: why they are not the same."""
        references, versions, plain = kept
        found: dict[int, Any] = dict(zip(self._plain, plain, strict=True))
        for n, reference in zip(self._weak, references, strict=True):
            found[n] = reference()
        for (edge, number), n in zip(node.next_functions, self._edges, strict=True):
            if found.get(n) is None:
                found[n] = edge.variable if hasattr(edge, "variable") else part_behind(edge, number)
        missing = [n for n in self._tensors if found[n] is None]
        if missing:
            raise DoubleBackwardError(f"input {missing[0]} of the forward is gone: keep a reference to it until then")
        for n, version in zip(self._counted, versions, strict=True):
            if found[n]._version != version:
                raise DoubleBackwardError(f"input {n} of the forward was written to since")
        return [found[n] for n in range(len(found))]


@attrs.frozen(eq=False)
class Begun:
    """A graph that ran once more: its inputs, of which gradients are asked for those at ``asked``, and its results."""

    inputs: list[Any]
    asked: list[int]
    results: Outputs


@attrs.frozen(eq=False)
class Again:
    """The gradients of one call, as a function of the inputs and tangents that autograd can differentiate.

    ``run`` is the program's graph, op by op; ``outputs`` are the positions of those of its outputs that ``tangents``
    (of the backward that gave the gradients) belong to, ``wanted`` those of the inputs whose gradients there are;
    no gradient flows to those ``apart``.  Gradients end at the outputs ``ends``, whose own come behind those of the
    inputs: of all of them.
    """

    run: Callable[..., Outputs]
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    wanted: tuple[int, ...]
    apart: tuple[int, ...]
    ends: tuple[int, ...] = ()

    def begin(self) -> Begun:
        """Run the graph, for ``first``."""
        with torch.enable_grad():
            inputs = list(self.inputs)
            asked = [n for n, v in enumerate(inputs) if isinstance(v, torch.Tensor) and v.requires_grad]
            asked = [n for n in asked if n not in self.apart]
            for n in asked:
                inputs[n] = inputs[n].view_as(inputs[n])
            return Begun(inputs, asked, self.run(*inputs))

    def first(self, begun: Begun, tangents: Sequence[Any], create_graph: bool, keeps_graph: bool) -> tuple[Any, ...]:
        """The gradients of the inputs themselves, for tangents of any class, or None, of the ``outputs``.

        ``keeps_graph``: what ran is for others, too.
        """
        inputs, results = begun.inputs, begun.results
        pairs = [(results[n], t) for n, t in zip(self.outputs, tangents, strict=True) if t is not None]
        pairs = [(r, t) for r, t in pairs if r.requires_grad]
        ends = [results[n] for n in self.ends]
        with stopped(ends):
            gradients = torch.autograd.grad(
                [r for r, _ in pairs], [*(inputs[n] for n in begun.asked), *ends], [t for _, t in pairs],
                create_graph=create_graph, retain_graph=create_graph or keeps_graph, allow_unused=True,
            )  # fmt: skip
        found = dict(zip([*begun.asked, *range(len(inputs), len(inputs) + len(ends))], gradients, strict=True))
        return tuple(map(found.get, range(len(inputs) + len(ends))))

    def attach(
        self, gradients: Sequence[Any], tangents: Sequence[torch.Tensor], ends: Sequence[torch.Tensor] = ()
    ) -> tuple[Any, ...]:
        """The gradients, with a node behind them that leads to inputs and tangents, and by tensors to the ``ends``."""
        given = without_edges(self.inputs, self.apart)
        tensors = [g for g, v in zip(given, self.inputs, strict=True) if isinstance(v, torch.Tensor)]
        plain = tuple(None if isinstance(v, torch.Tensor) else v for v in self.inputs)
        return _Attach.apply(attrs.evolve(self, inputs=plain), gradients, *tensors, *tangents, *ends)

    def differentiate(self, tensors: Sequence[torch.Tensor], weights: Sequence[Any], create_graph: bool) -> list[Any]:
        """Gradients of the weighted gradients for ``tensors``: those among the inputs, then the tangents, the ends."""
        if self.ends and create_graph:
            raise error("it was to have gradients itself, and is that of a result that others were computed of")
        with torch.enable_grad():
            # Aliases: a tangent may be computed from an input, and what leads there is for autograd to follow.
            own = [v.view_as(v) if v.requires_grad else v for v in tensors[: len(tensors) - len(self.ends)]]
            left = iter(own)
            inputs = [next(left) if value is None else value for value in self.inputs]
            results = self.run(*inputs)
            reached = [(results[n], t) for n, t in zip(self.outputs, left, strict=True) if results[n].requires_grad]
            ends = [results[n] for n in self.ends]
            with stopped(ends):
                first = torch.autograd.grad(
                    [r for r, _ in reached], [*(inputs[n] for n in self.wanted), *ends], [t for _, t in reached],
                    create_graph=True, allow_unused=True,
                )  # fmt: skip
        with stopped(ends):
            return _gradients([*own, *ends], first, weights, create_graph)


def _gradients(
    tensors: Sequence[torch.Tensor], values: Sequence[Any], weights: Sequence[Any], create_graph: bool
) -> list[Any]:
    """The gradient of weighted values for each of the tensors; None where there is none."""
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w is not None]
    pairs = [(v, w) for v, w in pairs if v.requires_grad]
    asked = [n for n, v in enumerate(tensors) if v.requires_grad]
    found: list[Any] = [None] * len(tensors)
    if pairs and asked:
        gradients = torch.autograd.grad(
            [v for v, _ in pairs], [tensors[n] for n in asked], [w for _, w in pairs],
            create_graph=create_graph, allow_unused=True,
        )  # fmt: skip
        for n, gradient in zip(asked, gradients, strict=True):
            found[n] = gradient
    return found


class _Attach(torch.autograd.Function):
    """Hands gradients on; their own gradients are computed by running the program's graph once more."""

    @staticmethod
    def forward(ctx: Any, again: Again, gradients: Sequence[torch.Tensor], *tensors: Any) -> Any:
        ctx.again = again
        ctx.save_for_backward(*values(tensors))
        ctx.set_materialize_grads(False)
        return tuple(g if g is None else g.view_as(g) for g in gradients)

    @staticmethod
    def backward(ctx: Any, *weights: Any) -> Any:
        found = ctx.again.differentiate(ctx.saved_tensors, weights, torch.is_grad_enabled())
        return (None, None, *found)


keep_torch_out(_Attach.backward)
