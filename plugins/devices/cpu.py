"""The CPU: kernels are functions of a shared library, run in place by the calling thread and its OpenMP team."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Callable

import attrs
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
from turret.storage.environment import processor, processor_family, processor_vendor
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


_ZEN_PRODUCTS = attrs.evolve(
    _PRODUCTS,
    large_library=ProductTime(2.0, 1e5, 9.7e4),
    onednn=ProductTime(14.0, 1e5, 1.05e5),
)
"""The same with products of 2 ** 24 multiply-adds and more, which MKL computes at 84 to 101 operations a nanosecond on
that core and oneDNN at 98 to 110: by weights of 256 to 1024 rows and columns oneDNN takes 3 to 9 % less time in the
forward and 7 to 11 % less in the gradient of the rows, for a vocabulary of 4096 15 % less (torch 2.13, each call timed
beside ``addmm`` or ``mm`` in turns); it takes 12 us more to begin (64 x 256 x 256: 10 % more)."""

_ZEN_5 = 26
"""The family of AMD's processors (and those after it) that compute 512 bits at once, which MKL leaves half unused."""
_ZEN_5_PRODUCTS = attrs.evolve(
    _PRODUCTS,
    large_library=ProductTime(2.0, 1e5, 1.05e5),
    onednn=ProductTime(14.0, 1e5, 2.3e5),
    onednn_copy=ProductTime(0.0, 1e4, 1e4),
)
"""The same on a core of that family: MKL computes at 100 to 110 operations a nanosecond, oneDNN at 200 to 240; from 64
x 256 x 256 on it takes a half to two thirds of the time, in the gradients of weights as well, but where many rows lie
across, whose copies take as much time as is won (256 x 64 x 4096)."""


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
        if arch != _properties().arch or not _has_avx512_of_amd():
            return _PRODUCTS
        return _ZEN_5_PRODUCTS if processor_family() >= _ZEN_5 else _ZEN_PRODUCTS

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


@functools.cache
def _has_avx512_of_amd() -> bool:
    """Whether this processor is one like those that ``_ZEN_PRODUCTS`` and ``_ZEN_5_PRODUCTS`` were measured on."""
    return processor_vendor() == "AuthenticAMD" and torch.backends.cpu.get_cpu_capability() == "AVX512"


_cpu = Cpu()


@hookimpl
def turret_device(device_type: str) -> Device | None:
    """The CPU."""
    return _cpu if device_type == _TYPE else None
