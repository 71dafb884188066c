"""Comparing sizes without asking the shape environment, which would turn a question into a guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are written the same."""
    if type(one) is int and type(other) is int:
        return one == other
    if type(one) is int or type(other) is int:
        return False
    return one.node.expr == other.node.expr


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes or strides are written the same."""
    return len(one) == len(other) and all(map(same_size, one, other))


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether strides and offset are written the same."""
    return one is other or (
        same_sizes(one.stride(), other.stride()) and same_sizes((one.storage_offset(),), (other.storage_offset(),))
    )
