"""The host: its device, and what its kernels report."""

from __future__ import annotations

import torch

HOST = torch.device("cpu")
"""Where numbers, NumPy arrays and tensors that name no device are: torch's own word for the host's memory."""

INDEX_ERROR, ZERO_DIVISION, OUT_OF_BOUNDS, OUT_OF_RANGE = 1, 2, 4, 8
"""What a kernel of the host returns where a checked index is out of range, an integer is divided by zero, an access
lies outside of its tensor (``check_bounds``), or an index is out of range for which eager raises a RuntimeError; 0 is
success."""
