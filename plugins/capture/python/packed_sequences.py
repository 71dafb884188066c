"""Sequences packed and padded again, written for capture to follow: eager's functions read lengths in C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def pack_padded(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch._pack_padded_sequence``: the elements that are there, step by step, and how many each step has."""
    if batch_first:
        padded = padded.transpose(0, 1)
    steps, longest = padded.size(0), int(lengths[0])
    if lengths.size(0) != padded.size(1):
        raise RuntimeError("lengths that are not of this batch")
    sorted_well = (lengths[1:] <= lengths[:-1]).all() & (lengths[-1] > 0) & (lengths[0] <= steps)
    if not bool(sorted_well):
        raise RuntimeError("lengths that eager does not take, or does not pack by")
    present = torch.arange(steps).unsqueeze(1) < lengths
    return padded[present.to(padded.device)], present.sum(1).narrow(0, 0, longest)


def pad_packed(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding: float, total: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch._pad_packed_sequence``: sequences of shape (``total``, batch, ...), and how long each is.

    Row ``t`` of the result has its first ``batch_sizes[t]`` elements from ``data``, where they lie one after the other.
    """
    count, batch = batch_sizes.size(0), int(batch_sizes[0])
    step, column = torch.arange(total), torch.arange(batch)
    row = step.clamp(max=count - 1)
    size = torch.where(step < count, batch_sizes[row], 0).unsqueeze(1)
    first = (batch_sizes.cumsum(0) - batch_sizes)[row].unsqueeze(1)
    present = column < size
    position = torch.where(present, first + column, 0).to(data.device)
    missing = ~present.to(data.device)
    for _ in range(data.dim() - 1):
        missing = missing.unsqueeze(-1)
    padded = data[position].masked_fill(missing, padding)
    return padded.transpose(0, 1) if batch_first else padded, present.sum(0)


def check_hidden_size(
    layer: Any, hidden: torch.Tensor, expected: Sequence[int], msg: str = "Expected hidden size {}, got {}"
) -> None:
    """``torch.nn.RNNBase.check_hidden_size``, size by size: each may be a number that depends on data."""
    if hidden.dim() != len(expected):
        raise RuntimeError(msg.format(expected, list(hidden.size())))
    for size, wanted in zip(hidden.size(), expected, strict=True):
        if size != wanted:
            raise RuntimeError(msg.format(expected, list(hidden.size())))
