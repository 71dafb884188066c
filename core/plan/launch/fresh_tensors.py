"""Many tensors over memory of their own, made in one native call: what replays of a graph hand out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from turret.hooks.devices import HOST, Placed
from turret.storage.extension import Extension


def tensor_maker(
    device: torch.device, nbytes: Sequence[int], tensors: Sequence[Placed], told: Sequence[int]
) -> Callable[[], tuple[list[torch.Tensor], list[int]]]:
    """``make()``: uninitialised tensors in blocks of ``nbytes`` bytes, and the addresses of those numbered ``told``.

    Each call takes the blocks anew, from the allocator that torch has for the device, in order of its current stream.

    Raises ``CodegenError`` where the native part cannot be built, ``ImportError`` where torch lacks what it needs, and
    ``ValueError`` where the device's tensors have no allocator.
    """
    native, sample = load(), torch.empty(1, device=device)
    dtypes = {tensor.dtype: torch.empty(0, dtype=tensor.dtype, device=HOST) for tensor in tensors}
    placed = tuple((dtypes[t.dtype]._cdata, t.shape, t.stride, t.block, t.offset) for t in tensors)
    make: Callable[[], tuple[list[torch.Tensor], list[int]]]
    make = native.maker(sample._cdata, tuple(nbytes), placed, tuple(told))
    return make


@functools.cache
def load() -> Any:
    """The extension module, built where it is not there; raises as ``Extension.load``."""
    return extension().load()


def extension() -> Extension:
    """The extension, as the running interpreter and torch need it."""
    source = Path(__file__).with_name("fresh_tensors.cpp")
    return Extension.of_torch(source, "making the outputs of replayed graphs natively", ("torch_python",))
