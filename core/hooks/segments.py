"""What runs a launch step of a plan, as a device gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch


def _nothing_is_missing(status: int) -> bool:
    """Kernels are compiled before a plan is loaded, on most devices."""
    return False


@attrs.frozen(eq=False)
class Segment:
    """One launch step of a loaded plan.

    ``run(*leading, slots, sizes, stream) -> status``, 0 for success: the addresses of the table of slots (where each
    slot's first element lies) and of that of sizes (int64), and what ``Device.stream_getter`` gives.  Where a device
    keeps no arenas the arena's address comes behind the slots, and those in it (``storage`` is ``arena``) lie
    ``number`` bytes from it: their own entries are empty.  Any other status goes to ``recover(status, slots, sizes,
    stream, tensors)`` (tables as ctypes arrays, tensors of inputs, results of calls and views by slot), which raises or
    makes it good.  ``compile_missing(status)`` is for runs that are handed to a recording: where a status says that a
    kernel is not compiled yet, it compiles it, touching no memory, for the same to be run again, and gives True.
    """

    run: Callable[..., int]
    recover: Callable[[int, Any, Any, int, Mapping[int, torch.Tensor]], None]
    leading: tuple[int, ...] = ()
    compile_missing: Callable[[int], bool] = _nothing_is_missing
