"""Memory, streams and devices by torch's native entries, where the public ones cost more or there are none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

uses_cxx11_abi: bool = torch._C._GLIBCXX_USE_CXX11_ABI
"""How torch's C++ was compiled, as extensions that link against it have to be."""
storage_at = torch._C._construct_storage_from_data_pointer
"""``storage_at(address, device, bytes)``: memory that somebody else owns, as a storage."""
storage_of_weak_pointer = torch.UntypedStorage._new_with_weak_ptr
"""The storage that a weak reference (``StorageWeakRef.cdata``) leads to; None where it is gone."""
same_addresses: Callable[[Sequence[Any], Sequence[Any], Sequence[int]], bool] | None
same_addresses = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)
"""``same_addresses(tensors, addresses, indices)``: whether the tensors at the indices lie at the addresses at the same
indices; one native call, in builds of torch that have it (those for CUDA)."""


def empty_strided_of(device_type: str) -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] | None:
    """``empty(shape, stride, dtype)`` below the dispatcher, as code that ``torch._inductor`` generates calls it.

    None for devices that have no such entry.
    """
    return getattr(torch._C._dynamo.guards, f"_empty_strided_{device_type}", None)


def stream_getter(index: int) -> Callable[[], int]:
    """What gives the handle of a CUDA device's current stream, in 0.1 us where the public way takes several."""
    return functools.partial(torch._C._cuda_getCurrentRawStream, index)


def current_device_getter() -> Callable[[], int]:
    """What gives the number of the current CUDA device, without the public way's look whether CUDA is in use."""
    return torch._C._cuda_getDevice


def cuda_function(name: str) -> Callable[..., Any] | None:
    """A native function of the CUDA build, of allocators and graphs; None in builds without it."""
    return getattr(torch._C, name, None)
