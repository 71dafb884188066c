"""The CPU: kernels are functions of a shared library, run in place by the calling thread and its OpenMP team."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Callable

import torch

from turret.graph.dtypes import HALF
from turret.hooks.devices import (
    Allocator,
    Costs,
    Device,
    KernelFamily,
    PlanLibrary,
    ProductCosts,
    ProductTime,
    Properties,
)
from turret.hooks.hookspecs import hookimpl
from turret.plan import Plan
from turret.plan.launch.functions import NativeFunctions
from turret.storage.artifact_cache import Store
from turret.storage.environment import processor
from turret.torch_compat.native import empty_strided_of

_TYPE = "cpu"


_PRODUCTS = ProductCosts(
    library=ProductTime(0.65, 1e5, 1.8e4),
    kernel=ProductTime(0.02, 1e4, 1e4),
    loops=ProductTime(0.05, 1e5, 8e3),
)
"""Fitted to times of small float32 products on one core of an AMD EPYC with AVX-512
(``tests/benchmarks/small_products.py``), of loops to the slow ones: a call takes 0.6 us more than loops over 2 x 2, and
1.1 to 1.4 us over what memory takes for 4096 multiply-adds, loops 0.1 to 0.9 us.  Calls in half types are slower than
that (4 us for 16 x 16 x 16)."""


class Cpu(Device):
    """The processor that runs this process; what a launch is handed as its stream is a number of threads."""

    type = _TYPE
    kernel_languages = frozenset({"c++"})
    eager_kernels = KernelFamily.HOST
    asynchronous = False
    channels_last = HALF | {torch.float32}
    # About 8 lanes a cycle against about 10 GB/s a core.
    costs = Costs(cheap=0.25, divide=1.0, transcendental=3.0, random=24.0, flops_per_byte=5.0)

    def properties(self, index: int) -> Properties:
        return _properties()

    def products(self, arch: str) -> ProductCosts | None:
        return _PRODUCTS

    def load(self, plan: Plan, store: Store | None) -> PlanLibrary:
        return NativeFunctions.of_plan(plan, store)

    def stream_getter(self, index: int) -> Callable[[], int]:
        return torch.get_num_threads

    def allocator(self, device: torch.device) -> Allocator:
        # Torch's own entry for generated code: no dispatcher.
        direct = empty_strided_of("cpu")
        return super().allocator(device) if direct is None else direct


@functools.cache
def _properties() -> Properties:
    arch = f"{platform.machine()}-{hashlib.sha256(processor().encode()).hexdigest()[:16]}"
    return Properties(platform.processor(), arch, os.cpu_count() or 0)


_cpu = Cpu()


@hookimpl
def turret_device(device_type: str) -> Device | None:
    """The CPU."""
    return _cpu if device_type == _TYPE else None
