"""The bias of a GPU convolution apart from the library's call.

Eager's GPU kernels add the bias, and sum its gradient, in launches of their own after the library's convolution, so
that the same two ops written out cost nothing and can be fused with what follows.  CPU libraries take the bias along.
"""

from __future__ import annotations

from typing import Any

import torch

from turret.plugins.decompositions.registry import decomposes

aten = torch.ops.aten


@decomposes("convolution")
def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *options: Any) -> torch.Tensor:
    if bias is None or x.device.type == "cpu" or x.dim() != weight.dim():
        return NotImplemented
    result = aten.convolution.default(x, weight, None, *options)
    return aten.add.Tensor(result, aten.view.default(bias, [-1] + [1] * (weight.dim() - 2)))


@decomposes("convolution_backward")
def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    *options: Any,
) -> tuple[torch.Tensor | None, ...]:
    *geometry, mask = options
    if not mask[2] or x.device.type == "cpu" or x.dim() != weight.dim():
        return NotImplemented
    wanted = [mask[0], mask[1], False]
    if any(wanted):
        of_x, of_weight, _ = aten.convolution_backward.default(grad, x, weight, bias_sizes, *geometry, wanted)
    else:
        of_x = of_weight = None
    others = [d for d in range(grad.dim()) if d != 1]
    return of_x, of_weight, aten.sum.dim_IntList(grad, others)
