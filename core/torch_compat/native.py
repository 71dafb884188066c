"""Memory, streams and devices by torch's native entries, where the public ones cost more or there are none."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

uses_cxx11_abi: bool = torch._C._GLIBCXX_USE_CXX11_ABI
"""How torch's C++ was compiled, as extensions that link against it have to be."""
storage_at = torch._C._construct_storage_from_data_pointer
"""``storage_at(address, device, bytes)``: memory that somebody else owns, as a storage."""
storage_of_weak_pointer = torch.UntypedStorage._new_with_weak_ptr
"""The storage that a weak reference (``StorageWeakRef.cdata``) leads to; None where it is gone."""
is_storage_gone = torch.UntypedStorage._expired
"""Whether the storage that a weak reference (``StorageWeakRef.cdata``) leads to is gone."""
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


@functools.cache
def blas_function(name: str) -> int:
    """The address of a function of the BLAS that torch's own library has within; 0 where it has none of that name.

    There it is the one that torch computes products with on x86-64; on other processors torch prefers other libraries.
    """
    if platform.machine() != "x86_64":
        return 0
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), os.RTLD_NOLOAD)
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return 0


def products_are_exact() -> bool:
    """Whether the CPU multiplies matrices of float32 as such, and not rounded to fewer bits."""
    return torch._C._get_fp32_precision_getter("mkldnn", "matmul") in ("none", "ieee")
