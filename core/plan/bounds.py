"""Checked memory accesses (option ``check_bounds``): what kernels are told, and the error of an access outside.

Behind the size symbols, the size table of such a plan holds for each slot how far its memory reaches (the first element
and one past the last, counted from the tensor's own first element), and then the words of a report.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, NoReturn

import torch

from turret.errors import OutOfBoundsError

if TYPE_CHECKING:
    from turret.plan import Launch, Plan

REPORT_WORDS = 5
"""Whether there was such an access, its slot, its index, the number of its kernel in the launch, and a spare word."""


def extent_position(plan: Plan, slot: int) -> int:
    """Where in the size table a slot's extent lies: two words."""
    return len(plan.size_symbols) + 2 * slot


def report_position(plan: Plan) -> int:
    """Where in the size table the report lies."""
    return extent_position(plan, plan.table_slots)


def table_length(plan: Plan) -> int:
    """Words of the size table."""
    return report_position(plan) + REPORT_WORDS if plan.check_bounds else len(plan.size_symbols)


def note_extent(sizes: ctypes.Array[ctypes.c_int64], position: int, tensor: torch.Tensor) -> None:
    """Write how far the memory of a tensor reaches: all of its storage."""
    before = int(tensor.storage_offset())
    sizes[position] = -before
    sizes[position + 1] = tensor.untyped_storage().nbytes() // tensor.element_size() - before


def note_static_extent(
    sizes: ctypes.Array[ctypes.c_int64], position: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    """Write the extent of a buffer that the plan placed: from its first element to its last."""
    sizes[position] = 0
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    sizes[position + 1] = 1 + reach if math.prod(shape) else 0


def raise_out_of_bounds(plan: Plan, launch: Launch, sizes: ctypes.Array[ctypes.c_int64]) -> NoReturn:
    """Raise what the report in the size table says, and clear it."""
    at = report_position(plan)
    slot, index, number = sizes[at + 1 : at + 4]
    sizes[at] = 0
    low, high = sizes[extent_position(plan, slot) : extent_position(plan, slot) + 2]
    found = plan.slots[slot]
    raise OutOfBoundsError(
        f"kernel {launch.origins[number]} of {plan.name} accesses element {index} of {found.name} "
        f"({found.dtype}{list(found.shape)} stride {list(found.stride)}, {found.storage}), whose memory "
        + (f"holds elements {low} to {high - 1}" if high > low else "is empty")
        + "; a lowering or a rewrite of indices is wrong: compare the products in debug_dir"
        + (f"\n{launch.sources[number]}" if launch.sources[number] else "")
    )
