"""Which inputs a node of autograd leads to: no edge leads to one that no gradient flows to.

Autograd would call the hooks of such an input, with None, and those that run after its gradient was accumulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch

from turret.hooks.signature import GraphSignature, Mutation


@attrs.frozen(eq=False)
class WithoutEdge:
    """A tensor that a node is given and does not lead to."""

    value: torch.Tensor


def unreached(signature: GraphSignature) -> tuple[int, ...]:
    """Inputs that require a gradient and that none flows to.

    All are led to where gradients flow to no input, but to a leaf within the program: its results require one.
    """
    if not any(info.requires_grad and info.reached_from for info in signature.inputs):
        return ()
    return tuple(
        n
        for n, info in enumerate(signature.inputs)
        if info.requires_grad
        and not info.reached_from
        and (info.mutation is Mutation.NONE or info.is_hidden_write)
        and info.replaced_by is None
    )


def without_edges(inputs: Sequence[Any], apart: Iterable[int]) -> list[Any]:
    """What to give a node for its inputs, of which it is not to lead to those ``apart``."""
    given = list(inputs)
    for n in apart:
        given[n] = WithoutEdge(given[n])
    return given


def values(given: Iterable[Any]) -> tuple[Any, ...]:
    """The inputs of a node of what it was given for them."""
    return tuple(v.value if type(v) is WithoutEdge else v for v in given)
