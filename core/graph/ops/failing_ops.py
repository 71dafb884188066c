"""An op that raises: what stands in a backward graph for a backward of the user's that cannot succeed.

``turret::fail(like, size, dtype, device, kind, message) -> Tensor`` has a result of the given form for whoever traces
it, and raises the built-in exception named ``kind`` for whoever runs it.  ``like`` says when: once it is there.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import torch

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("fail(Tensor like, SymInt[] size, ScalarType dtype, Device device, str kind, str? message) -> Tensor")


def _fail(
    like: torch.Tensor, size: Sequence[int], dtype: torch.dtype, device: torch.device, kind: str, message: str | None
) -> torch.Tensor:
    raise getattr(builtins, kind)(*(() if message is None else (message,)))


def _form(
    like: torch.Tensor, size: Sequence[int], dtype: torch.dtype, device: torch.device, kind: str, message: str | None
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


_library.impl("fail", _fail, "CompositeExplicitAutograd")
torch.library.register_fake("turret::fail", _form, lib=_library)
