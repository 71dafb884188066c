"""Whether two tensors in one storage have an element in common, and what that means for an op that writes."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from turret.graph.fakes.sizes import is_dense, same_places, same_sizes
from turret.graph.op_traits import size_hint

_STEPS = 10_000
"""Steps after which the search for a common place gives up and takes it that there is one."""


class Overlap(enum.Enum):
    """How two tensors in one storage lie to each other."""

    NONE = "none"
    SAME = "same"
    """Element by element in the same places."""
    PARTIAL = "partial"
    """Some places in common, or none that could be told (sizes that are symbols)."""


def overlap(one: torch.Tensor, other: torch.Tensor) -> Overlap:
    """How two tensors lie to each other that are known to be in one storage."""
    if one.dtype == other.dtype and same_sizes(one.shape, other.shape) and same_places(one, other):
        return Overlap.SAME
    numbers = [*one.shape, *one.stride(), one.storage_offset(), *other.shape, *other.stride(), other.storage_offset()]
    if not all(type(number) is int for number in numbers):
        return Overlap.NONE if _follows(one, other) or _follows(other, one) else Overlap.PARTIAL
    if one.numel() == 0 or other.numel() == 0:
        return Overlap.NONE
    return Overlap.PARTIAL if _share_bytes(one, other) else Overlap.NONE


def _share_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of known layouts, in one storage, may have a byte in common."""
    width, other_width = one.element_size(), other.element_size()
    terms = [(stride * width, 1 - extent, 0) for extent, stride in zip(one.shape, one.stride(), strict=True)]
    terms += [(s * other_width, 0, extent - 1) for extent, s in zip(other.shape, other.stride(), strict=True)]
    if width > 1 or other_width > 1:
        terms += [(1, 1 - width, other_width - 1)]
    distance = int(one.storage_offset()) * width - int(other.storage_offset()) * other_width
    terms = sorted((term for term in terms if term[0] and term[1] < term[2]), reverse=True)
    return _is_sum(distance, terms, [_STEPS])


def _follows(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether ``second`` begins where ``first`` has ended, for all sizes."""
    if first.dtype != second.dtype:
        return False
    end = first.storage_offset() + 1
    for extent, stride in zip(first.shape, first.stride(), strict=True):
        end = end + (extent - 1) * stride
    gap = second.storage_offset() - end
    return gap >= 0 if isinstance(gap, int) else bool(sympy.expand(gap.node.expr).is_nonnegative)


def refused_by_eager(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether ATen's own check finds that a write to ``one`` would be half a write to ``other``.

    It looks at tensors without gaps alone.  Sizes that are symbols are taken for those of the example: a graph that
    eager refuses then runs eagerly.
    """
    dense = is_dense(one.shape, one.stride()) and is_dense(other.shape, other.stride())
    if not dense or overlap(one, other) is not Overlap.PARTIAL:
        return False
    (start, end), (other_start, other_end) = map(_span, (one, other))
    return max(start, other_start) < min(end, other_end)


def _span(dense: torch.Tensor) -> tuple[int, int]:
    """Where a tensor without gaps begins and ends, in bytes of its storage."""
    start = size_hint(dense.storage_offset(), 0)
    count = math.prod(map(size_hint, dense.shape))
    return start * dense.element_size(), (start + count) * dense.element_size()


def _is_sum(target: int, terms: Sequence[tuple[int, int, int]], steps: list[int]) -> bool:
    """Whether ``target`` is a sum of a multiple of each stride, from its least factor to its greatest.

    The strides come largest first: what the smaller ones can reach leaves few factors to try for each.
    """
    steps[0] -= 1
    if not terms or steps[0] < 0:
        return target == 0 or steps[0] < 0
    (stride, least, greatest), rest = terms[0], terms[1:]
    low = sum(s * factor for s, factor, _ in rest)
    high = sum(s * factor for s, _, factor in rest)
    first, last = max(least, -((high - target) // stride)), min(greatest, (target - low) // stride)
    return any(_is_sum(target - factor * stride, rest, steps) for factor in range(first, last + 1))


def sharing(values: Sequence[Any], storages: Sequence[Any]) -> list[tuple[int, int, Overlap]]:
    """Pairs of tensors among ``values`` that have an element in common; ``storages`` say which memory each lies in."""
    found: dict[int, list[int]] = {}
    pairs: list[tuple[int, int, Overlap]] = []
    for number, storage in enumerate(storages):
        if storage is None:
            continue
        for other in found.setdefault(id(storage), []):
            how = overlap(values[other], values[number])
            if how is not Overlap.NONE:
                pairs.append((other, number, how))
        found[id(storage)].append(number)
    return pairs
