"""Ops on the memory behind a tensor, with offsets counted from the tensor's own start.

ATen counts ``as_strided``'s offset from the start of the storage, which for a tensor inside a larger block of
memory is not the tensor's start.  Compiled graphs place tensors where they like, so they count from the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("as_strided_scatter(Tensor x, Tensor source, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor")


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """A copy of ``x`` in its layout, with ``source`` written to the given strides of it."""
    length = 1 + sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    reach = offset + 1 + sum((e - 1) * s for e, s in zip(size, stride, strict=True)) if source.numel() else 0
    memory = x.new_empty(max(length, reach))
    memory.copy_(x.as_strided((max(length, reach),), (1,), x.storage_offset()))
    memory.as_strided(size, stride, offset).copy_(source)
    return memory.as_strided(x.shape, x.stride(), 0)


_library.impl("as_strided_scatter", _as_strided_scatter, "CompositeExplicitAutograd")
