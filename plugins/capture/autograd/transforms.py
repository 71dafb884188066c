"""Functions of nodes that apply a transform of ``torch.func`` to a graph.

Each holds ``graph``, a function of flat inputs that returns a tuple of tensors, and is called with the graph's
inputs: ``mapped`` of them that the transform is about, then those that the function found elsewhere.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import fx


@attrs.define(eq=False)
class Transform:
    """Base: the graph under no transform."""

    graph: fx.GraphModule
    mapped: int = 0
    __name__: str = "transformed"

    def __call__(self, *inputs: Any) -> Any:
        return self.graph(*inputs)

    def closed(self, rest: tuple) -> Any:
        """The graph as a function of its first inputs."""
        return lambda *first: self.graph(*first, *rest)


@attrs.define(eq=False)
class Vmap(Transform):
    """``torch.vmap``: ``in_dims`` of the first inputs, ``out_dims`` of the outputs."""

    in_dims: tuple[int | None, ...] = ()
    out_dims: tuple[int | None, ...] = ()
    randomness: str = "error"

    def __call__(self, *inputs: Any) -> Any:
        in_dims: Any = (*self.in_dims, *[None] * (len(inputs) - self.mapped))
        out_dims: Any = self.out_dims
        return torch.vmap(self.graph, in_dims, out_dims, self.randomness)(*inputs)


@attrs.define(eq=False)
class Grad(Transform):
    """``torch.func.grad_and_value`` with all outputs behind the first as auxiliary: gradients, then outputs."""

    def __call__(self, *inputs: Any) -> Any:
        first, rest = inputs[: self.mapped], inputs[self.mapped :]

        def function(*first: Any) -> tuple[Any, Any]:
            loss, *others = self.graph(*first, *rest)
            return loss, tuple(others)

        numbers = tuple(range(self.mapped))
        transform: Any = torch.func.grad_and_value
        gradients, (loss, others) = transform(function, argnums=numbers, has_aux=True)(*first)
        return (*gradients, loss, *others)


@attrs.define(eq=False)
class Vjp(Transform):
    """The cotangents of the first inputs; the last inputs are those of the first ``outputs`` outputs."""

    outputs: int = 1

    def __call__(self, *inputs: Any) -> Any:
        inputs, cotangents = inputs[: -self.outputs], inputs[-self.outputs :]
        first, rest = inputs[: self.mapped], inputs[self.mapped :]
        transform: Any = torch.func.vjp
        _, pull = transform(lambda *first: tuple(self.graph(*first, *rest)[: self.outputs]), *first)
        return pull(tuple(cotangents))


@attrs.define(eq=False)
class Jvp(Transform):
    """``torch.func.jvp`` of the first ``outputs`` outputs; the last inputs are the tangents of the first."""

    outputs: int = 1
    strict: bool = False

    def __call__(self, *inputs: Any) -> Any:
        inputs, tangents = inputs[: -self.mapped], inputs[-self.mapped :]
        first, rest = inputs[: self.mapped], inputs[self.mapped :]

        def function(*first: Any) -> tuple[Any, Any]:
            found = tuple(self.graph(*first, *rest))
            return found[: self.outputs], found[self.outputs :]

        transform: Any = torch.func.jvp
        values, derivatives, others = transform(function, first, tuple(tangents), strict=self.strict, has_aux=True)
        return (*values, *derivatives, *others)


@attrs.define(eq=False)
class Jacobian(Transform):
    """``jacrev`` or ``jacfwd``: for each of the first ``outputs`` outputs, for each input; then other outputs."""

    forward: bool = False
    outputs: int = 1
    options: dict[str, Any] = attrs.field(factory=dict)

    def __call__(self, *inputs: Any) -> Any:
        first, rest = inputs[: self.mapped], inputs[self.mapped :]

        def function(*first: Any) -> tuple[Any, Any]:
            found = tuple(self.graph(*first, *rest))
            return found[: self.outputs], found[self.outputs :]

        transform: Any = torch.func.jacfwd if self.forward else torch.func.jacrev
        numbers = tuple(range(self.mapped))
        found, others = transform(function, argnums=numbers, has_aux=True, **self.options)(*first)
        return (*(part for row in found for part in row), *others)


@attrs.define(eq=False)
class DualLevel(Transform):
    """The graph at a level of dual tensors (``torch.autograd.forward_ad.dual_level``), which ends with it."""

    def __call__(self, *inputs: Any) -> Any:
        with torch.autograd.forward_ad.dual_level():
            return self.graph(*inputs)
