"""Where inputs lie in memory: guarded on where a call can tell, and left open everywhere else.

A graph reads its inputs wherever they begin.  Calls that count from the start of the memory (``as_strided`` with an
offset, ``storage_offset``) give something else for each place, and how much memory there is says where they end.
"""

from __future__ import annotations

from typing import Any

import torch

from turret.frames.guards import Guard
from turret.plugins.capture.values.base import Tracer
from turret.torch_compat.trees import pytree

_COUNT_FROM_THE_START = frozenset(
    {"storage_offset", "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "sym_storage_offset"}
)


def offset_and_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """A tensor's offset in its memory, in elements, and how large the memory is, in bytes."""
    return int(tensor.storage_offset()), tensor.untyped_storage().nbytes()


def guard_offsets(t: Tracer, target: Any, args: list[Any]) -> None:
    """Guard where the inputs lie that a call looks at, if it is one that can tell."""
    if _name(target) not in _COUNT_FROM_THE_START:
        return
    memories = {v.untyped_storage()._cdata for v in pytree.tree_leaves(args) if isinstance(v, torch.Tensor)}
    for item in t.recorder.inputs:
        tensor = item.example
        if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata in memories:
            t.guards.add(Guard("CALL", item.source, (offset_and_bytes, offset_and_bytes(item.real))))


def _name(target: Any) -> str:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.partition(".")[0]
