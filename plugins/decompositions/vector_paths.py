"""Eager's CPU kernels take most of a tensor by vectors and what is left by scalars: which elements meet which.

The two were written apart, and differ at NaN, or in a zero's sign, for some activations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from turret.hooks.devices import HOST
from turret.torch_compat.dispatch import disable_current_modes
from turret.torch_compat.function_overrides import DisableTorchFunction

aten = torch.ops.aten
ONE_PIECE = 32768
"""Elements that eager hands to one thread; of more, where scalars are met depends on the number of threads."""


def by_vectors(
    x: torch.Tensor, vectors: Callable[[], torch.Tensor], scalars: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """What eager's kernel gives of ``x``: ``vectors()``, and ``scalars()`` for the elements that fill no vector.

    Where sizes are symbolic, ``x`` is large or not row-major, it is ``vectors()`` alone, which most elements meet.
    """
    count = x.numel()
    if not isinstance(count, int) or count > ONE_PIECE or not x.is_contiguous():
        return vectors()
    taken = count - count % (bytes_a_step() // x.dtype.itemsize)
    if taken == count:
        return vectors()
    if not taken:
        return scalars()
    places = torch.ops.prims.iota.default(
        count, start=0, step=1, dtype=torch.int64, device=x.device, requires_grad=False
    )
    return aten.where.self(aten.ge.Scalar(aten.view.default(places, list(x.shape)), taken), scalars(), vectors())


@functools.cache
def bytes_a_step() -> int:
    """Bytes of input that eager's vector loop takes at once, as one of its kernels shows; 64 with AVX2."""
    with disable_current_modes(), DisableTorchFunction():
        for step in (16, 32, 64, 128, 256, 512):
            nans = torch.full((step // 4,), float("nan"), dtype=torch.float32, device=HOST)
            if not aten.hardtanh_backward.default(torch.ones_like(nans), nans, -1.0, 1.0)[0]:
                return step
    return 64
