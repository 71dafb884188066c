"""Hooks on gradients of tensors inside a captured graph, which autograd does not tell of by itself."""

from __future__ import annotations

from typing import Any

import torch

_MARK = "turret_gradient_hook"


def note_hook(tensor: torch.Tensor) -> None:
    """Remember that a hook was registered on a tensor with a history."""
    node: Any = tensor.grad_fn
    node.metadata[_MARK] = True


def has_hook(node: Any) -> bool:
    """Whether a hook was noted on a result of a node of autograd's graph."""
    return _MARK in node.metadata
