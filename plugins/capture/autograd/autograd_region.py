"""A user's ``autograd.Function`` in the graph: its forward and its backward as graphs, joined to autograd again."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import torch
from torch import fx

from turret.graph.ops import failing_ops  # noqa: F401  (defines ``turret::fail``)
from turret.graph.tensor_versions import version_of
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.operators.checks import require


@attrs.define(eq=False)
class AutogradRegion:
    """The function of a node: ``forward``'s outputs, with ``backward`` as their gradient.

    ``forward``: the inputs -> ``outputs`` outputs, then what is saved.  ``backward``: one gradient for each output,
    then what was saved -> one gradient or None for each argument of the user's function.  ``arguments`` gives for
    each of these the input that it is, or None for one that is no tensor.  Inputs that are no arguments
    were found by the function elsewhere; no gradient flows to them.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    outputs: int
    arguments: tuple[int | None, ...]
    dirty: tuple[int, ...] = ()
    """Inputs that the forward changes in place and says so."""
    not_differentiable: tuple[int, ...] = ()
    """Outputs without gradient."""
    checked: frozenset[int] = frozenset()
    """Which of what is saved autograd looks after: a change in place before the backward is an error."""
    failure: tuple[str, str | None] | None = None
    """The name and the message of the exception that the backward raises, whatever it is given."""
    name: str = "AutogradRegion"
    """That of the user's class, as which autograd knows the node."""
    __name__: str = "autograd_region"

    def __call__(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        given = {n for n in self.arguments if n is not None}
        operands = [v if n in given or not isinstance(v, torch.Tensor) else v.detach() for n, v in enumerate(inputs)]
        return _named(self.name).apply(self, *operands, *(inputs[n] for n in self.given_again))

    @functools.cached_property
    def given_again(self) -> tuple[int, ...]:
        """The inputs of arguments that are one of those before: autograd adds up what they get, in its own order."""
        tensors = [n for n in self.arguments if n is not None]
        return tuple(n for position, n in enumerate(tensors) if n in tensors[:position])


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: AutogradRegion, *inputs: Any) -> tuple[torch.Tensor, ...]:
        inputs = inputs[: len(inputs) - len(region.given_again)]
        results = region.forward(*inputs)
        outputs, saved = results[: region.outputs], results[region.outputs :]
        ctx.region, ctx.inputs = region, len(inputs)
        if region.failure is not None:
            ctx.forms = [(v.shape, v.dtype, v.device) if isinstance(v, torch.Tensor) else None for v in inputs]
        if any(isinstance(v, FakeTensor) for v in inputs):
            ctx.saved = saved  # a trace knows tensors by identity, which saving does not keep
            ctx.versions = {n: version_of(saved[n]) for n in region.checked}
        else:
            ctx.save_for_backward(*(saved[n] for n in sorted(region.checked)))
            ctx.saved = [None if n in region.checked else v for n, v in enumerate(saved)]
        if region.dirty:
            ctx.mark_dirty(*(inputs[n] for n in region.dirty))
        if region.not_differentiable:
            ctx.mark_non_differentiable(*(outputs[n] for n in region.not_differentiable))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        saved, region = ctx.saved, ctx.region
        if region.failure is not None:
            fail = torch.ops.turret.fail.default
            wanted = [f if n in region.arguments else None for n, f in enumerate(ctx.forms)]
            wanted += [ctx.forms[n] for n in region.given_again]
            return None, *(None if f is None else fail(gradients[0], *f, *region.failure) for f in wanted)
        if hasattr(ctx, "versions"):
            require(all(version_of(saved[n]) == version for n, version in ctx.versions.items()), lambda: _CHANGED)
        else:
            tensors = iter(ctx.saved_tensors)
            saved = [next(tensors) if n in region.checked else v for n, v in enumerate(saved)]
        made = region.backward(*gradients, *saved)
        found: dict[int, Any] = {}
        again: list[Any] = []
        for number, gradient in zip(region.arguments, made, strict=True):
            if number in found:
                again.append(gradient)
            elif number is not None:
                found[number] = gradient
        return None, *map(found.get, range(ctx.inputs)), *again


@functools.lru_cache
def _named(name: str) -> type[_Apply]:
    return type(name, (_Apply,), {})


_CHANGED = "a tensor that an autograd.Function saved for its backward was changed in place before it"
