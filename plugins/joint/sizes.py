"""Comparing sizes without asking the shape environment, which would turn a question into a guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
