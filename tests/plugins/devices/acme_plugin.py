"""A vendor's plugin for the device "acme": it runs what Turret's C++ code generator makes, and records it into graphs.

Of Turret it imports public names alone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch

import turret
from tests.plugins.devices.acme_graphs import AcmeCapture, Launched, selected
from turret.hooks.context import CompileContext
from turret.hooks.devices import Device, KernelFamily, MakesMany, PlanLibrary, Properties, Segment
from turret.hooks.products import Target
from turret.plan import Launch, Plan
from turret.plan.launch.fresh_tensors import tensor_maker
from turret.storage.libraries import Library, find_library, keep_library, open_library

MAGIC = b"ACME 1\n"
"""How the device's binaries begin."""


@attrs.define
class Driver:
    """The device's driver: runs kernels at once, or notes them while something is recorded.

    ``launched`` has what ran last, with the stream; ``strangers`` are addresses that kernels were given of memory that
    is not the device's.
    """

    native: ctypes.CDLL
    launched: Launched = attrs.field(factory=lambda: deque(maxlen=10_000))
    strangers: list[int] = attrs.field(factory=list)

    def run(self, kernel: AcmeKernel, slots: Any, sizes: Any, stream: int) -> int:
        """Run a kernel on tables that the caller has, or record it."""
        if self.native.acme_recording():
            return self._record(kernel, slots, sizes)
        self.strangers += [a for a in (slots[n] for n in kernel.slots) if a and not self.native.acme_owns(a)]
        self.launched.append((kernel.name, stream))
        return kernel.function(ctypes.addressof(slots), ctypes.addressof(sizes), 1)

    def _record(self, kernel: AcmeKernel, slots: Any, sizes: Any) -> int:
        read = (ctypes.c_int64 * len(kernel.slots))(*kernel.slots)
        function = ctypes.cast(kernel.function, ctypes.c_void_p)
        tables = slots, kernel.slot_count, sizes, kernel.size_count
        self.native.acme_record_kernel(kernel.name.encode(), function, read, len(read), *tables)
        return 0


@attrs.frozen(eq=False)
class AcmeKernel:
    """One function of a plan's library, and which slots it is handed."""

    name: str
    function: Callable[[int, int, int], int]
    slots: tuple[int, ...]
    slot_count: int
    size_count: int
    in_arena: tuple[tuple[int, int], ...]

    def place(self, slots: Any) -> None:
        """Write where slots of an arena lie that a call took, behind which its address comes."""
        for slot, offset in self.in_arena:
            slots[slot] = slots[self.slot_count - 1] + offset


class AcmeLibrary(PlanLibrary):
    """The kernels of one plan."""

    def __init__(self, driver: Driver, plan: Plan, handle: ctypes.CDLL, keeps_arena: bool) -> None:
        self.driver, self.plan, self.handle, self.keeps_arena = driver, plan, handle, keeps_arena

    def segment(self, launch: Launch) -> Segment:
        function = getattr(self.handle, launch.function)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int), ctypes.c_int64
        plan, by_call = self.plan, not self.keeps_arena
        counts = plan.table_slots + by_call, max(1, len(plan.size_symbols))
        placed = tuple((n, plan.slots[n].number) for n in launch.slots if by_call and plan.slots[n].storage == "arena")
        kernel = AcmeKernel(f"{plan.name}.{launch.function}", function, launch.slots, *counts, placed)

        def run(slots_at: int, sizes_at: int, stream: int) -> int:
            slots = (ctypes.c_void_p * kernel.slot_count).from_address(slots_at)
            sizes = (ctypes.c_int64 * kernel.size_count).from_address(sizes_at)
            kernel.place(slots)
            return self.driver.run(kernel, slots, sizes, stream)

        def recover(status: int, slots: Any, sizes: Any, stream: int, tensors: Mapping[int, torch.Tensor]) -> None:
            raise IndexError(f"acme: status {status} of {', '.join(launch.origins)}")

        return Segment(run, recover)


class Acme(Device):
    """The device: two of them, with memory and streams of their own."""

    type = "acme"
    kernel_languages = frozenset({"c++"})
    eager_kernels = KernelFamily.HOST  # operations that it does not have run on the host

    def __init__(self, driver: Driver, keeps_arena: bool) -> None:
        self.driver, self.keeps_arena = driver, keeps_arena
        self.graphs, self.loaded = AcmeCapture(driver.native, driver.launched), []

    def properties(self, index: int) -> Properties:
        return Properties("Acme One", "acme1", cores=4, memory=1 << 30)

    def load(self, plan: Plan, store: Any) -> PlanLibrary:
        entry = find_library(plan.library, store)
        magic, content = entry[plan.library.file][: len(MAGIC)], entry[plan.library.file][len(MAGIC) :]
        if magic != MAGIC:
            raise turret.TurretError(f"{plan.name} has no binary of acme's")
        for other in self.loaded:
            if other.library == plan.library and other.table_slots != plan.table_slots:
                raise turret.TurretError(f"kernels of {plan.name} are handed other tables than those of {other.name}")
        self.loaded.append(plan)
        return AcmeLibrary(self.driver, plan, open_library(content, entry.key), self.keeps_arena)

    def current_index(self) -> int:
        return self.driver.native.acme_device()

    def selected(self, index: int) -> AbstractContextManager[None]:
        return selected(self.driver.native, index)

    def stream_getter(self, index: int) -> Callable[[], int]:
        return lambda: self.driver.native.acme_stream(index)

    def byte_copier(self, index: int) -> Callable[[int, int, int, int], int]:
        def copy(target: int, source: int, nbytes: int, stream: int) -> int:
            self.driver.native.acme_copy(target, source, nbytes)
            return 0

        return copy

    def makes_many(self, device: torch.device) -> MakesMany:
        return functools.partial(tensor_maker, device)


class AcmePlugin:
    """What a program gives to ``turret.compile``."""

    def __init__(self, native: ctypes.CDLL, keeps_arena: bool = True) -> None:
        self.device = Acme(Driver(native), keeps_arena)
        self.cache_key = f"acme 2, {'with' if keeps_arena else 'without'} arenas"

    @turret.hookimpl(wrapper=True)
    def turret_codegen(self, context: CompileContext, target: Target) -> Any:
        """What the C++ code generator makes, as a binary of the device's own."""
        plan = yield
        if target.device_type != "acme" or plan.library is None:
            return plan
        made = find_library(plan.library, context.store("codegen"))
        key = hashlib.sha256(MAGIC + made.key.encode()).hexdigest()
        keep_library(context.store("codegen"), key, {"acme.bin": MAGIC + made[plan.library.file]})
        return attrs.evolve(plan, library=Library(key, "acme.bin"))

    @turret.hookimpl
    def turret_device(self, device_type: str) -> Device | None:
        return self.device if device_type == "acme" else None
