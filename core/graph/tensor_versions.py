"""Autograd's count of the changes in place of a tensor."""

from __future__ import annotations

import torch


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's version; 0 of one made in inference mode, whose changes autograd does not count."""
    return 0 if tensor.is_inference() else tensor._version
