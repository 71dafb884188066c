"""Memory for the tensors of a call, without the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Allocator = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]

_direct = torch._C._dynamo.guards
"""Torch's own entry for generated code: 1.0 us on a GPU's host, where ``torch.empty_strided`` takes 2.4."""


def allocator(device: torch.device) -> Allocator:
    """``empty(shape, stride, dtype)``: an uninitialised tensor on a device, in order of the current stream."""

    def through_dispatcher(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    direct: Allocator | None = getattr(_direct, f"_empty_strided_{device.type}", None)
    if direct is None or device.type not in ("cpu", "cuda"):
        return through_dispatcher
    if device.type == "cpu" or torch.cuda.device_count() == 1:
        return direct
    current, index = torch._C._cuda_getDevice, device.index or 0

    def on_device(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return (direct if current() == index else through_dispatcher)(shape, stride, dtype)

    return on_device
