"""Eager's CPU kernels take most of a tensor by vectors and what is left by scalars: which elements meet which.

The two were written apart, and differ at NaN, or in a zero's sign, for some activations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from turret.hooks.devices import HOST
from turret.torch_compat.dispatch import disable_current_modes
from turret.torch_compat.function_overrides import DisableTorchFunction

aten = torch.ops.aten
ONE_PIECE = 32768
"""Elements that eager hands to one thread; of more, where scalars are met depends on the number of threads."""


def by_vectors(
    kernel: str, x: torch.Tensor, vectors: Callable[[], torch.Tensor], scalars: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """What eager's ``kernel`` gives of ``x``: ``vectors()``, and ``scalars()`` for the elements that fill no vector.

    Where sizes are symbolic, ``x`` is large or not row-major, it is ``vectors()`` alone, which most elements meet.
    """
    count = x.numel()
    if not isinstance(count, int) or count > ONE_PIECE or not x.is_contiguous():
        return vectors()
    taken = count - count % (bytes_a_step(kernel) // x.dtype.itemsize)
    if taken == count:
        return vectors()
    if not taken:
        return scalars()
    places = torch.ops.prims.iota.default(
        count, start=0, step=1, dtype=torch.int64, device=x.device, requires_grad=False
    )
    return aten.where.self(aten.ge.Scalar(aten.view.default(places, list(x.shape)), taken), scalars(), vectors())


_SHOWN: dict[str, tuple[float, Callable[[torch.Tensor], torch.Tensor]]] = {
    "softshrink": (-0.2, lambda x: aten.softshrink.default(x, 0.5)),
    "shrink_backward": (math.nan, lambda x: aten.hardshrink_backward.default(torch.ones_like(x), x, 0.5)),
    "hardtanh_backward": (math.nan, lambda x: aten.hardtanh_backward.default(torch.ones_like(x), x, -1.0, 1.0)),
    "hardswish_backward": (math.nan, lambda x: aten.hardswish_backward.default(torch.ones_like(x), x)),
    "elu_backward": (math.nan, lambda x: aten.elu_backward.default(torch.ones_like(x), 1.0, 1.0, 1.0, False, x)),
    "logit_backward": (math.nan, lambda x: aten.logit_backward.default(torch.ones_like(x), x, 0.1)),
}
"""For each kernel, a value that its vectors and its scalars take differently, and a call."""


@functools.cache
def bytes_a_step(kernel: str) -> int:
    """Bytes of input that a kernel's vector loop takes at once, as it shows itself.

    64 with AVX2; with AVX512 128 for some and 64 for others, of which torch has no such build.
    """
    value, run = _SHOWN[kernel]
    with disable_current_modes(), DisableTorchFunction():

        def first_of(count: int) -> str:
            return str(run(torch.full((count,), value, dtype=torch.float32, device=HOST))[0].item())

        alone = first_of(1)
        return next((step for step in (16, 32, 64, 128, 256, 512) if first_of(step // 4) != alone), 64)
