"""Outputs of a call that ran as it is, made of the memory that they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.hooks.graph_capture import MemoryPool
from turret.plan.modes import below_autograd
from turret.plugins.cudagraphs.recording.node import Block, memory_at, tensor_on
from turret.plugins.cudagraphs.work import Result, Shapes


def outputs_on(
    device: torch.device, shapes: Shapes, blocks: Sequence[Block], inputs: Sequence[Any], pool: MemoryPool
) -> list:
    """Outputs over blocks of a pool, which they keep."""
    storages = [memory_at(address, nbytes, device, pool) for address, nbytes in blocks]

    def made(result: Result) -> torch.Tensor:
        layout = result.layout
        assert layout is not None  # every output over a buffer has one
        return tensor_on(device, storages[result.source], result.offset, layout.shape, layout.stride, layout.dtype)

    return [made(r) if r.kind == "buffer" else of_others(r, inputs) for r in shapes.results]


def fresh_outputs(shapes: Shapes, buffers: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list:
    """Outputs over buffers that a call was given."""
    return [_view(buffers[r.source], r) if r.kind == "buffer" else of_others(r, inputs) for r in shapes.results]


def of_others(result: Result, inputs: Sequence[Any]) -> Any:
    """An output that lies in no buffer of its call: a number, or memory of an input or a constant."""
    if result.kind == "value":
        return result.source
    return _view(inputs[result.source] if result.kind == "input" else result.source, result)


def _view(base: torch.Tensor, result: Result) -> torch.Tensor:
    layout = result.layout
    if layout is None:
        return base
    with below_autograd():
        return torch.as_strided(base, layout.shape, layout.stride, base.storage_offset() + result.offset)
