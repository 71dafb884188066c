"""The strides that eager gives to elementwise results, where fake tensors say otherwise.

All elementwise ops lay out their result by one rule, which ranks dimensions by the operands' strides, earlier operands
first.  Fake tensors run other code: decompositions that have operands in another order, or that broadcast first.
Where symbols leave it open which of two strides is the larger, the answer for the sizes at hand becomes a guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.graph.fakes.sizes import contiguous_strides, is_dense, same_sizes

_CHANNELS_LAST = (0, 2, 3, 1)


def elementwise_strides(operands: Sequence[torch.Tensor], shape: Sequence[Any]) -> tuple[Any, ...]:
    """Strides of a result of ``shape`` (no extent 0) of operands that broadcast to it, in the op's order."""
    alike = all(same_sizes(t.shape, shape) for t in operands)
    if alike and all(map(_is_row_major, operands)):
        return contiguous_strides(shape)
    if alike and len(shape) == 4 and all(_is_row_major(t.permute(_CHANNELS_LAST)) for t in operands):
        return packed(shape, _CHANNELS_LAST)
    first = operands[0].stride()
    if alike and all(same_sizes(t.stride(), first) and is_dense(t.shape, t.stride()) for t in operands):
        return tuple(first)
    return packed(shape, _ranked(shape, [_broadcast_strides(t, shape) for t in operands]))


def _is_row_major(value: torch.Tensor) -> bool:
    """Whether strides are written as a row-major tensor's; those of dimensions of extent 1 do not count."""
    expected = contiguous_strides(value.shape)
    counted = [d for d, extent in enumerate(value.shape) if not (type(extent) is int and extent == 1)]
    return same_sizes([value.stride(d) for d in counted], [expected[d] for d in counted])


def _broadcast_strides(operand: torch.Tensor, shape: Sequence[Any]) -> list[Any]:
    """An operand's strides, 0 along dimensions that it is repeated along or lacks."""
    missing = len(shape) - operand.dim()
    own = [
        0 if extent == 1 and wanted != 1 else stride
        for extent, stride, wanted in zip(operand.shape, operand.stride(), shape[missing:], strict=True)
    ]
    return [0] * missing + own


def _ranked(shape: Sequence[Any], strides: Sequence[Sequence[Any]]) -> list[int]:
    """Dimensions, the slowest first: an insertion sort, since the order of dimensions is no total one."""
    order = list(reversed(range(len(shape))))
    for placed in range(1, len(order)):
        moving = placed
        for other in reversed(range(placed)):
            compared = _compare(order[other], order[moving], shape, strides)
            if compared < 0:
                break
            if compared > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
    return order[::-1]


def _compare(one: int, other: int, shape: Sequence[Any], strides: Sequence[Sequence[Any]]) -> int:
    """Negative where dimension ``one`` is the faster of the two, positive where it is the slower, 0 where none says."""
    for stride in strides:
        if stride[one] == 0 or stride[other] == 0:
            continue
        if stride[one] != stride[other]:
            return -1 if stride[one] < stride[other] else 1
        if shape[one] > shape[other]:
            return 1
    return 0


def packed(shape: Sequence[Any], slowest_first: Sequence[int]) -> tuple[Any, ...]:
    """Strides of a block without gaps whose dimensions lie in memory in the order given."""
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for dimension in reversed(slowest_first):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)
