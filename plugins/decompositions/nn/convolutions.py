"""The bias of a GPU convolution apart from the library's call.

Eager's GPU kernels add the bias, and sum its gradient, in launches of their own after the library's convolution, so
that the same two ops written out cost nothing and can be fused with what follows.  CPU libraries take the bias along.
"""

from __future__ import annotations

from typing import Any

import torch

from turret.hooks.devices import uses_host_kernels
from turret.plugins.decompositions.registry import decomposes

aten = torch.ops.aten


@decomposes("convolution")
def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *options: Any) -> torch.Tensor:
    if bias is None or uses_host_kernels(x.device) or x.dim() != weight.dim():
        return NotImplemented
    return with_bias_apart(x, weight, bias, *options)


@decomposes("convolution_backward")
def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    *options: Any,
) -> tuple[torch.Tensor | None, ...]:
    if not options[-1][2] or uses_host_kernels(x.device) or x.dim() != weight.dim():
        return NotImplemented
    return gradients_with_bias_apart(grad, x, weight, bias_sizes, *options)


def with_bias_apart(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *options: Any) -> torch.Tensor:
    """A convolution without bias, and the bias added."""
    result = aten.convolution.default(x, weight, None, *options)
    return aten.add.Tensor(result, aten.view.default(bias, [-1] + [1] * (weight.dim() - 2)))


def gradients_with_bias_apart(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    *options: Any,
) -> tuple[torch.Tensor | None, ...]:
    """The library's gradients that ``output_mask`` (the last of ``options``) asks for, and the bias's as a sum."""
    *geometry, mask = options
    of_x = of_weight = None
    if mask[0] or mask[1]:
        wanted = [mask[0], mask[1], False]
        of_x, of_weight, _ = aten.convolution_backward.default(grad, x, weight, bias_sizes, *geometry, wanted)
    return of_x, of_weight, aten.sum.dim_IntList(grad, [d for d in range(grad.dim()) if d != 1])
