"""Tensors of a captured graph whose history a backward in it has freed, as a later backward outside of it will find."""

from __future__ import annotations

from typing import Any

import torch

_MARK = "turret_freed_graph"


def note_freed(tensor: torch.Tensor, message: str) -> None:
    """Remember what autograd says where gradients of a tensor with a history are asked for once more.

    A view may be made again from what it is a view of, which has the same end.
    """
    for each in (tensor, tensor._base):
        node: Any = None if each is None else each.grad_fn
        if node is not None:
            node.metadata[_MARK] = message


def freed_message(tensor: torch.Tensor) -> str | None:
    """What was noted of a tensor's history, or None."""
    node: Any = tensor.grad_fn
    found = None if node is None else node.metadata.get(_MARK)
    return found if isinstance(found, str) else None
