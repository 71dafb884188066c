"""Kernels that are C functions of a shared library: ``function(slots, sizes, threads) -> status``.

They run where they are called, on memory that the process can address; a status is the error that it stands for.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import torch

from turret.errors import CodegenError
from turret.hooks.devices import OUT_OF_BOUNDS, OUT_OF_RANGE, ZERO_DIVISION, PlanLibrary, Segment, device_for
from turret.plan import Launch, Plan
from turret.plan.bounds import raise_out_of_bounds
from turret.storage.artifact_cache import Store
from turret.storage.libraries import find_library, open_library
from turret.torch_compat.native import blas_function

BLAS = {"blas_sgemm": "sgemm_", "blas_dgemm": "dgemm_"}
"""Pointers of a library of kernels, which are filled in as it is loaded, and the function that each is to lead to."""


class NativeFunctions(PlanLibrary):
    """The functions of one plan's library, which release the GIL while they run."""

    def __init__(self, plan: Plan, content: bytes, name: str) -> None:
        if plan.arena_bytes and not device_for(torch.device(plan.device).type).keeps_arena:
            raise CodegenError(f"functions of {plan.name} read the arena's slots, and {plan.device} keeps no arenas")
        self._plan, self._handle = plan, open_library(content, name)
        connect(self._handle)

    @classmethod
    def of_plan(cls, plan: Plan, store: Store | None) -> NativeFunctions:
        """Load what the plan names; ``CacheError`` where it is gone, ``OSError`` where it is no library."""
        entry = find_library(plan.needed_library, store)
        return cls(plan, entry[plan.needed_library.file], entry.key)

    def segment(self, launch: Launch) -> Segment:
        function = getattr(self._handle, launch.function)
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        function.restype = ctypes.c_int64
        return Segment(function, functools.partial(raise_status, self._plan, launch))


def connect(handle: ctypes.CDLL) -> None:
    """Fill in the pointers of a library to BLAS; ``OSError`` where there is no such function."""
    for pointer, name in BLAS.items():
        try:
            place = ctypes.c_void_p.in_dll(handle, pointer)
        except ValueError:
            continue
        place.value = blas_function(name)
        if not place.value:
            raise OSError(f"generated code calls {name}, which this build of torch does not have")


def raise_status(
    plan: Plan, launch: Launch, status: int, slots: Any, sizes: Any, stream: int, tensors: Mapping[int, torch.Tensor]
) -> None:
    """Raise what a status other than 0 stands for: a ``Segment``'s ``recover``, given plan and launch."""
    if plan.check_bounds and status == OUT_OF_BOUNDS:
        raise_out_of_bounds(plan, launch, sizes)
    origins = ", ".join(launch.origins)
    if status == ZERO_DIVISION:
        raise RuntimeError("ZeroDivisionError")
    if status == OUT_OF_RANGE:
        raise RuntimeError(f"index out of range in {origins}")
    raise IndexError(f"index out of range in {origins}")
