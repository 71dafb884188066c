"""Fake results of calls that are not made on fake tensors: gradients seem to flow through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def fake_outputs(examples: Sequence[torch.Tensor], inputs: Sequence[Any], differentiable: Sequence[bool]) -> tuple:
    """New tensors of the layouts of ``examples``; those ``differentiable`` have a gradient if an input has."""
    return _Like.apply(tuple(examples), tuple(differentiable), *(v for v in inputs if isinstance(v, torch.Tensor)))


class _Like(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, examples: tuple, differentiable: tuple[bool, ...], *inputs: torch.Tensor) -> tuple:
        ctx.inputs = inputs
        made = [torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device) for e in examples]
        ctx.mark_non_differentiable(*(m for m, flows in zip(made, differentiable, strict=True) if not flows))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        found = (torch.empty_like(v) if v.is_floating_point() or v.is_complex() else None for v in ctx.inputs)
        return None, None, *found
