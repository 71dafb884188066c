"""Hooks of leaves that a backward does not reach.

One node of autograd stands for all that a graph computes, and leads to all inputs.  Where gradients of some results
alone are there, autograd goes on from it to leaves that they do not flow to, and calls the hooks of those: with None,
and after an accumulation that is none.  Eager, which has a node for each operation, does not get there.  So for the
time of such a backward these hooks look first whether there is a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import attrs
import torch
from torch.autograd import Variable

from turret.storage.fork_safety import Lock

_lock = Lock()


def spare(node: Any, gradients: Sequence[Any], tensors: Sequence[int]) -> None:
    """Keep autograd from calling hooks of leaves that a node leads to and has no gradient for, unless others have one.

    Called in the backward of the node, for all of its inputs, of which those at ``tensors`` are such; hooks are as they
    were when the backward ends.
    """
    for (function, _), n in zip(node.next_functions, tensors, strict=True):
        leaf = getattr(function, "variable", None)
        if gradients[n] is None and leaf is not None and (leaf._backward_hooks or leaf._post_accumulate_grad_hooks):
            _spare(leaf)


def _spare(leaf: torch.Tensor) -> None:
    with _lock:
        after: MutableMapping[int, Any] = leaf._post_accumulate_grad_hooks or {}
        if any(isinstance(hook, _Looking) for hook in (*(leaf._backward_hooks or {}).values(), *after.values())):
            return
        arrived = _Arrived()
        noting = leaf.register_hook(arrived.note)  # behind the others, and the only one where there are none
        before: Any = leaf._backward_hooks
        hooks = [(each, key, hook) for each in (before, after) for key, hook in each.items() if hook != arrived.note]
        for each, key, hook in hooks:
            each[key] = _Looking(hook, arrived, is_before=each is before)
    Variable._execution_engine.queue_callback(lambda: _restore(noting, hooks))


def _restore(noting: Any, hooks: Sequence[tuple[MutableMapping[int, Any], int, Any]]) -> None:
    noting.remove()
    for each, key, hook in hooks:
        if isinstance(each.get(key), _Looking):  # it may have been removed
            each[key] = hook


@attrs.define(eq=False)
class _Arrived:
    """Whether a gradient came to a leaf."""

    is_there: bool = False

    def note(self, gradient: torch.Tensor | None) -> None:
        self.is_there |= gradient is not None


@attrs.frozen(eq=False)
class _Looking:
    """A hook that is called where a gradient came."""

    hook: Callable[[Any], Any]
    arrived: _Arrived
    is_before: bool
    """Whether it is called with the gradient; else with the leaf, when that has accumulated it."""

    def __call__(self, given: Any) -> Any:
        has_come = given is not None if self.is_before else self.arrived.is_there
        return self.hook(given) if has_come else None
