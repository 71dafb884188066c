"""Full backward hooks of modules, written for capture to follow: eager's hook nodes of autograd's graph.

Here they are hooks of tensors, in front of eager's function that passes a module's inputs, and that of its results.
What raises is left to eager: several tensors that take gradients, whose hooks wait for all of them, and what hooks
return that eager refuses or takes for no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.torch_compat.autograd import BackwardHookFunction


class LeftToEager(Exception):
    """Raised by the functions here; no program sees it."""


def pass_on(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], torch.Tensor | None, int]:
    """Inputs (or results) of a module behind eager's function for them, the tensor whose hooks come after it, and its
    place; no such tensor where none of them takes a gradient."""
    if type(values) is not tuple:
        raise LeftToEager
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    differentiable = [place for place in places if values[place].requires_grad]
    if not differentiable or not torch.is_grad_enabled():
        return values, None, -1
    if len(differentiable) > 1:
        raise LeftToEager
    [place] = differentiable
    hooked = values[place].view_as(values[place])
    passed = list(values)
    passed[place] = hooked
    for number, tensor in zip(places, BackwardHookFunction.apply(*[passed[n] for n in places]), strict=True):
        passed[number] = tensor
    return tuple(passed), hooked, place


def register(
    module: Any, hooks: Sequence[Any], pre_hooks: Sequence[Any], inputs: tuple[Any, ...], results: tuple[Any, ...]
) -> None:
    """Have gradients of a module's one result and one input go through hooks; both are tensors, places and counts.

    All gradients of the input come through the result: eager does not call ``hooks`` for others.
    """
    before, place, count = inputs
    after, result_place, result_count = results
    arrived = torch.empty_like(after, requires_grad=False)  # the result's gradient, for the hooks of the input's

    def at_result(gradient: torch.Tensor) -> torch.Tensor:
        gradients = _alone(gradient, result_place, result_count)
        for hook in pre_hooks:
            gradients = _replaced(gradients, hook(module, gradients), result_place)
        arrived.copy_(_alike(gradients[result_place], gradient))
        return gradients[result_place]

    def at_input(gradient: torch.Tensor) -> torch.Tensor:
        gradients, of_results = _alone(gradient, place, count), _alone(arrived, result_place, result_count)
        for hook in hooks:
            gradients = _replaced(gradients, hook(module, gradients, of_results), place)
        return _alike(gradients[place], gradient)

    after.register_hook(at_result)
    before.register_hook(at_input)


def _alone(gradient: torch.Tensor, place: int, count: int) -> tuple[Any, ...]:
    """The gradients of ``count`` values, of which one takes a gradient."""
    return tuple([gradient if n == place else None for n in range(count)])


def _replaced(gradients: tuple[Any, ...], found: Any, place: int) -> tuple[Any, ...]:
    """What a hook returned in place of gradients, or these."""
    if found is None:
        return gradients
    if type(found) is not tuple or len(found) != len(gradients):
        raise LeftToEager
    for number, gradient in enumerate(found):
        if (gradient is None) == (number == place):
            raise LeftToEager
    return found


def _alike(gradient: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """A gradient of the layout that it had before the hooks."""
    if gradient.shape != before.shape or gradient.dtype != before.dtype or gradient.device != before.device:
        raise LeftToEager
    return gradient
