"""A user's ``autograd.Function`` in the graph: its forward and its backward as graphs, joined to autograd again."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.ops import failing_ops  # noqa: F401  (defines ``turret::fail``)
from turret.graph.ops.live_memory import say_live
from turret.graph.tensor_versions import version_of
from turret.graph.wrapper_tensors import parts_of
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.operators.checks import require


@attrs.frozen(eq=False)
class OfNothing:
    """A backward that was given None: a graph of some of what was saved, by number, or what it raises.

    ``added``: how much, at the end of what was saved, no other backward takes.
    """

    backward: fx.GraphModule | None
    failure: tuple[str, str | None] | None = None
    saved: tuple[int, ...] = ()
    added: int = 0


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
    written: frozenset[int] = frozenset()
    """Which of what is saved the backward writes to."""
    label: str = ""
    """What tells this call from others of the graph."""
    failure: tuple[str, str | None] | None = None
    """The name and the message of the exception that the backward raises, whatever it is given."""
    of_nothing: OfNothing | None = None
    """What the backward does where no output has a gradient; without this it is given zeros there."""
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

    def gradients(self, given: Sequence[Any], saved: Sequence[Any], traced: bool) -> Sequence[Any]:
        """What the user's backward makes of gradients of the outputs; one or None for each of its arguments."""
        other = self.of_nothing
        if other is None:
            return self.backward(*given, *saved)
        if any(g is not None for g in given):
            return self.backward(*given, *saved[: len(saved) - other.added])
        if other.backward is not None:
            return other.backward(*(saved[n] for n in other.saved))
        assert other.failure is not None
        kind, message = other.failure
        if traced:  # the graph runs eagerly, and raises in its backward
            raise UnsupportedError(f"the backward of {self.name} raises {kind} where there is no gradient")
        raise getattr(builtins, kind)(*([] if message is None else [message]))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: AutogradRegion, *inputs: Any) -> tuple[torch.Tensor, ...]:
        inputs = inputs[: len(inputs) - len(region.given_again)]
        results = region.forward(*inputs)
        outputs, saved = results[: region.outputs], results[region.outputs :]
        ctx.region, ctx.inputs = region, len(inputs)
        ctx.set_materialize_grads(region.of_nothing is None)
        if region.failure is not None:
            ctx.forms = [(v.shape, v.dtype, v.device) if isinstance(v, torch.Tensor) else None for v in inputs]
        if any(isinstance(p, FakeTensor) for v in inputs if isinstance(v, torch.Tensor) for p in parts_of(v)):
            ctx.saved = saved  # a trace knows tensors by identity, which saving does not keep
            ctx.versions = {n: version_of(saved[n]) for n in region.checked}
            ctx.saves_tensors = bool(region.checked)
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
            say_live(saved, region.label, region.written, region.checked)
        else:
            tensors = iter(ctx.saved_tensors)
            saved = [next(tensors) if n in region.checked else v for n, v in enumerate(saved)]
        made = region.gradients(gradients, saved, traced=hasattr(ctx, "versions"))
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
