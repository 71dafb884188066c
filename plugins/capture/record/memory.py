"""Where inputs lie in memory: guarded on where a call can tell, and left open everywhere else.

A graph reads its inputs wherever they begin.  Calls that count from the start of the memory (``as_strided`` with an
offset, ``storage_offset``) give something else for each place, and how much memory there is says where they end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from turret.frames.guards import Guard
from turret.plugins.capture.values.base import Tracer
from turret.plugins.capture.values.tensors import Tensor
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


def is_empty_and_new(t: Tracer, tensor: Tensor) -> bool:
    """Whether a tensor that the graph made has memory of its own without room for an element."""
    fake = tensor.fake
    if tensor.real is not None or t.recorder.open_regions or fake.layout is not torch.strided or fake.requires_grad:
        return False
    memory = fake.untyped_storage()
    return (
        type(tensor) is Tensor
        and statically_known_true(memory.nbytes() == 0)
        and all(
            v is tensor or v.fake.layout is not torch.strided or v.fake.untyped_storage()._cdata != memory._cdata
            for v in t.recorder.by_fake.values()
        )
    )
