"""What runs a launch step of a plan, as a device gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch


@attrs.frozen(eq=False)
class Segment:
    """One launch step of a loaded plan.

    ``run(*leading, slots, sizes, stream) -> status``, 0 for success: the addresses of the table of slots (where each
    slot's first element lies) and of that of sizes (int64), and what ``Device.stream_getter`` gives.  Where a device
    keeps no arenas the arena's address comes behind the slots, and those in it (``storage`` is ``arena``) lie
    ``number`` bytes from it: their own entries are empty.  Any other status goes to ``recover(status, slots, sizes,
    stream, tensors)`` (tables as ctypes arrays, tensors of inputs, results of calls and views by slot), which raises or
    makes it good.
    """

    run: Callable[..., int]
    recover: Callable[[int, Any, Any, int, Mapping[int, torch.Tensor]], None]
    leading: tuple[int, ...] = ()
