"""An op that says that memory from before is read, and perhaps written to, when a backward runs.

``turret::live(Tensor x, bool written, bool checked, str label) -> ()`` stands in front of what a backward of the user's
(or a gradient hook) does with ``x``, and does nothing for whoever runs it.  Who traces a backward ahead of its time
learns by it that ``x`` holds by then what others have left there.  ``written``: the backward writes to ``x``.
``checked``: a change of ``x`` between the forward and the backward is an error, as ``x`` was saved through autograd.
``label`` names the use of ``x``, alike in all traces of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.graph.wrapper_tensors import parts_of

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("live(Tensor x, bool written, bool checked, str label) -> ()")


def _live(x: torch.Tensor, written: bool, checked: bool, label: str) -> None:
    """Nothing."""


_library.impl("live", _live, "CompositeExplicitAutograd")
torch.library.register_fake("turret::live", _live, lib=_library)


def say_live(saved: Sequence[Any], label: str, written: frozenset[int], checked: frozenset[int] = frozenset()) -> None:
    """The op for each tensor of what a backward uses of its forward, or for each of the plain tensors in a wrapper.

    ``written`` and ``checked`` are positions.
    """
    for number, value in enumerate(saved):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            for place, part in enumerate(parts_of(value)):
                torch.ops.turret.live(part, number in written, number in checked, f"{label}.{number}.{place}")
