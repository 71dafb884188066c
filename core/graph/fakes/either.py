"""The layout of what one of two graphs gives, as the result of the call that runs one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turret.graph.fakes.sizes import contiguous_strides, same_size, same_sizes


def either_of(one: torch.Tensor, other: torch.Tensor, unknown: Callable[[], Any]) -> torch.Tensor | None:
    """A fake tensor that stands for either: ``one`` where they have the same sizes, else a contiguous one whose
    differing extents are ``unknown`` sizes.

    None where they differ in more than extents, or are not contiguous.  To be called where fake tensors are made.
    """
    if one.dtype != other.dtype or one.device != other.device or one.dim() != other.dim():
        return None
    if same_sizes(one.shape, other.shape):
        return one
    if not (is_row_major(one) and is_row_major(other)):
        return None
    sizes = [a if same_size(a, b) else unknown() for a, b in zip(one.shape, other.shape, strict=True)]
    return torch.empty(sizes, dtype=one.dtype, device=one.device)


def is_row_major(value: torch.Tensor) -> bool:
    """Whether a fake tensor is contiguous as its strides are written; sizes that data give may be among them."""
    return same_sizes(value.stride(), contiguous_strides(value.shape))
