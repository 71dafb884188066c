"""CUDA devices: kernels are binaries behind a launch table, which the native launcher queues on a stream."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from turret.graph.dtypes import HALF
from turret.hooks.devices import (
    Allocator,
    AttentionCosts,
    ByteCopier,
    Costs,
    Device,
    KernelFamily,
    MakesMany,
    PlanLibrary,
    ProductCosts,
    ProductTime,
    Properties,
    Segment,
)
from turret.hooks.hookspecs import hookimpl
from turret.plan import Launch, Plan
from turret.plan.workspaces import device_table_lengths
from turret.storage.artifact_cache import Store
from turret.storage.libraries import find_library
from turret.torch_compat.native import current_device_getter, empty_strided_of, stream_getter

if TYPE_CHECKING:
    from turret.hooks.graph_capture import GraphCapture
    from turret.plan.launch.device import DeviceLibrary

_TYPE = "cuda"


_HOPPER = ProductCosts(
    library=ProductTime(4.3, 4.1e6, 7e8),
    rows=ProductTime(1.9, 4.2e6, 2e7),
    thin=ProductTime(3.9, 4.05e6, 2e8),
    tiles=ProductTime(5.0, 4.1e6, 5.2e8),
    dequantised=ProductTime(5.0, 2.7e6, 1.2e8),
    grouped=ProductTime(5.0, 4.1e6, 5.6e8),
    grouped_library=ProductTime(5.0, 3.85e6, 7.5e8),
    kernel=ProductTime(2.0, 4.1e6, 1e9),
    misaligned=6.0,
    attention=AttentionCosts(4.3, 6.8e4, ProductTime(4.7, 4e6, 1e9)),
)
"""Fitted to times of bfloat16 products on an H200 (``tests/benchmarks/products.py``), of generated kernels to the slow
ones.  Five products of a decode step of one row take 3.9 to 32.6 us as rows and 6.3 to 35.5 us as calls; one of 4096 x
3072 x 768 takes 35.2 us in tiles and 33.9 us as a call, and 10 us more in both with a GELU behind it; one of 4096 x
50265 x 1024 takes 779 us in tiles and 4405 us as a call.  Attention of one query of 32 heads over 1024 keys takes 6.8
us split, all keys read, and 8.2 us as a call (cuDNN's).

Of weights of few bits and of groups to times on an H100 (``tests/benchmarks/expert_products.py``; what reads memory was
taken to be faster by as much as plain products are on an H200): 64 rows by 6144 x 4096 of int8 28 us in tiles, 54 us
dequantised and called; 16384 rows in 128 groups by 768 x 2048 with an activation 189 us in tiles and 208 us called,
8192 rows in 8 groups by 14336 x 4096 1700 and 1436 us."""


class Cuda(Device):
    """NVIDIA GPUs, as torch's CUDA runtime shows them."""

    type = _TYPE
    kernel_languages = frozenset({"triton"})
    eager_kernels = KernelFamily.GPU
    keeps_arena = False
    # Eager's float32 kernels differ between the layouts by more than rounding: one may be TF32.
    channels_last = HALF
    costs = Costs(cheap=0.01, divide=0.05, transcendental=0.1, random=1.0, flops_per_byte=100.0, launch_bytes=4 << 20)

    def properties(self, index: int) -> Properties:
        if not torch.cuda.is_available():
            return Properties()
        found = torch.cuda.get_device_properties(index)
        arch = f"sm_{found.major}{found.minor}"
        return Properties(found.name, arch, found.multi_processor_count, found.total_memory)

    def driver(self, index: int) -> str:
        from turret.plan.launch.driver_library import DRIVER

        version = ctypes.c_int()
        with contextlib.suppress(OSError):
            ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
        return str(version.value or "")

    def products(self, arch: str) -> ProductCosts | None:
        return _HOPPER if arch.startswith("sm_9") else None

    def load(self, plan: Plan, store: Store | None) -> PlanLibrary:
        from turret.plan.launch.device import DeviceLibrary  # a process without a GPU has no use for the launcher

        entry, (slots, sizes) = find_library(plan.needed_library, store), device_table_lengths(plan)
        return LaunchedBinaries(DeviceLibrary(entry, store, torch.device(plan.device).index or 0, slots, sizes))

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def current_index(self) -> int:
        return torch.cuda.current_device()

    def selected(self, index: int) -> AbstractContextManager[None]:
        return torch.cuda.device(index)

    def stream_getter(self, index: int) -> Callable[[], int]:
        return stream_getter(index)

    def byte_copier(self, index: int) -> ByteCopier:
        from turret.plan.launch.driver_library import LAUNCHER

        return functools.partial(LAUNCHER.load().turret_copy, index)

    @functools.cached_property
    def graphs(self) -> GraphCapture:  # type: ignore[override]
        from turret.plugins.devices.cuda_graphs import CudaCapture  # who records nothing does not pay for it

        return CudaCapture()

    def allocator(self, device: torch.device) -> Allocator:
        through_dispatcher = super().allocator(device)
        # Torch's own entry for generated code: 1.0 us on a GPU's host, where torch.empty_strided takes 2.4.
        direct = empty_strided_of("cuda")
        if direct is None:
            return through_dispatcher
        if torch.cuda.device_count() == 1:
            return direct
        current, index = current_device_getter(), device.index or 0

        def on_device(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return (direct if current() == index else through_dispatcher)(shape, stride, dtype)

        return on_device

    def makes_many(self, device: torch.device) -> MakesMany:
        from turret.plan.launch.fresh_tensors import tensor_maker  # who records nothing has no use for it

        return functools.partial(tensor_maker, device)

    def times(self, index: int, run: Callable[[], Any], prepare: Callable[[], Any], repeats: int) -> list[float]:
        events = []
        for _ in range(repeats):
            prepare()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]


class LaunchedBinaries(PlanLibrary):
    """A launch table and its binaries on one device."""

    def __init__(self, library: DeviceLibrary) -> None:
        self._library = library
        self.prepare = library.prepare  # type: ignore[method-assign]

    def segment(self, launch: Launch) -> Segment:
        from turret.plan.launch.lazy_kernels import compile_missing

        found = self._library.function(launch.function)
        recover = functools.partial(found.recover, names=", ".join(launch.origins))
        return Segment(found.run, recover, (found.handle,), compile_missing)


_cuda = Cuda()


@hookimpl
def turret_device(device_type: str) -> Device | None:
    """NVIDIA GPUs."""
    return _cuda if device_type == _TYPE else None
