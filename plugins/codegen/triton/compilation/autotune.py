"""Autotuning: a kernel's configurations timed on the device, and the fastest remembered on disk.

A choice is kept under the device's name and driver, the kernel and the sizes it was timed with, so that other processes
and other machines with that device read it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch

from turret.hooks.devices import device_for
from turret.hooks.products import Target
from turret.ir import TensorDecl
from turret.plan.launch.device import TABLE, DeviceLibrary
from turret.plan.launch.table import (
    NUMBER,
    Clear,
    KernelLaunch,
    LaunchTable,
    Number,
    Parameter,
    SlotPointer,
    expression,
    segment_words,
)
from turret.plugins.codegen.triton.compilation.compile import CompiledKernel, Variant
from turret.plugins.codegen.triton.tiles.kernel import evaluated
from turret.storage import codec
from turret.storage.artifact_cache import Entry, Store

WARM_UPS, REPEATS = 3, 15
FLUSH_BYTES = 256 << 20
"""Written between runs, so that what a kernel reads is not still in the L2 cache from the run before."""

ROLE = "choice"
_CHOICE = "choice.json"
HIDDEN = "memory of Triton's own"
"""Stands among a kernel's buffers for what Triton's compiler wants."""
Candidate = tuple[Variant, CompiledKernel]


class Tuner:
    """Times candidates on one device."""

    def __init__(self, cache: Store, target: Target) -> None:
        self.cache, self.target, self.index = cache, target, target.index or 0
        self.device = device_for(target.device_type)
        self.device_name = f"{self.device.properties(self.index).name} {self.device.driver(self.index)}"

    def best(self, candidates: Sequence[Candidate], declarations: Mapping[str, TensorDecl]) -> Candidate:
        """The fastest of a kernel's configurations; the first where there is nothing to time it with.

        Symbolic sizes have no values at this time, and kernels that share scratch memory are not timed apart.
        A candidate that the device refuses (too much shared memory, say) is out; raises what the device said where
        none is left.
        """
        kernel = candidates[0][0][0]
        alone = all(b in declarations and _is_static(declarations[b]) for b in kernel.buffers)
        if len(candidates) == 1 or kernel.sizes or not alone:
            return candidates[0]
        tensors = {b: declarations[b] for b in kernel.buffers}
        key = self._key(candidates, [*tensors.values()])
        stored = self.cache.get(key, ROLE)
        if stored is not None:
            return candidates[json.loads(stored[_CHOICE])["choice"]]
        times = self._times(candidates, tensors, kernel.ends)
        choice = min(range(len(times)), key=times.__getitem__)
        self.cache.keep(key, ROLE, {_CHOICE: json.dumps({"choice": choice, "milliseconds": times}).encode()})
        return candidates[choice]

    def _key(self, candidates: Sequence[Candidate], tensors: list[TensorDecl]) -> str:
        binaries = [compiled.key for _, compiled in candidates]
        sizes = [(decl.shape, decl.stride) for decl in tensors]
        return hashlib.sha256(repr(("tuned", self.device_name, binaries, sizes)).encode()).hexdigest()

    def _times(
        self, candidates: Sequence[Candidate], tensors: Mapping[str, TensorDecl], ends: Mapping[str, int]
    ) -> list[float]:
        """Median milliseconds of each candidate; infinite where the device refuses it."""
        times = []
        failure: Exception | None = None
        with self.device.selected(self.index):
            flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.target.device)
            samples = {name: _sample(decl, self.target.device, ends.get(name)) for name, decl in tensors.items()}
            for variant, compiled in candidates:
                try:
                    times.append(self._time(variant, compiled, samples, flush))
                except RuntimeError as error:
                    times.append(math.inf)
                    failure = error.with_traceback(None)  # whose frames hold the samples
        if failure is not None and not any(map(math.isfinite, times)):
            raise failure
        return times

    def _time(
        self, variant: Variant, compiled: CompiledKernel, tensors: Mapping[str, torch.Tensor], flush: torch.Tensor
    ) -> float:
        kernel, _ = variant
        own = {scratch.name: scratch.itemsize * evaluated(scratch.count, {}) for scratch in kernel.scratch}
        hidden = compiled.scratch_bytes(kernel.grid_for(variant[1], {}))
        memory = {
            name: torch.empty(nbytes, dtype=torch.uint8, device=flush.device)
            for name, nbytes in {**own, **({HIDDEN: hidden} if hidden else {})}.items()
        }
        slots_of = {name: number for number, name in enumerate((*tensors, *memory))}
        clears = [
            Clear(SlotPointer(slots_of[scratch.name]), (NUMBER, own[scratch.name]))
            for scratch in kernel.scratch
            if scratch.zeroed
        ]
        words = segment_words(0, (*clears, launch_over(variant, compiled, slots_of)))
        table = LaunchTable((compiled.binary,), {"run": words}, {})
        files = {compiled.binary.file: compiled.image, TABLE: codec.dumps(table).encode()}
        entry = Entry(compiled.key, ROLE, files)
        segment = DeviceLibrary(entry, self.cache, self.index, len(slots_of), 1).function("run")
        slots = (ctypes.c_void_p * len(slots_of))(*(t.data_ptr() for t in (*tensors.values(), *memory.values())))
        sizes = (ctypes.c_int64 * 1)()
        stream = self.device.stream_getter(self.index)()

        def run() -> None:
            status = segment.run(segment.handle, slots, sizes, stream)
            if status:
                segment.recover(status, slots, sizes, stream, {}, variant[0].name)

        return median(self.device.times(self.index, run, flush.zero_, WARM_UPS + REPEATS)[WARM_UPS:])


def sample(decl: TensorDecl, device: str, rows: int | None = None) -> torch.Tensor:
    """A tensor of a layout, with values that kernels can be timed on: the ends of groups of so many ``rows``, if it
    holds those."""
    return _sample(decl, device, rows).as_strided(decl.shape, decl.stride)


def _is_static(decl: TensorDecl) -> bool:
    return all(isinstance(v, int) for v in (*decl.shape, *decl.stride))


def _sample(decl: TensorDecl, device: str, rows: int | None) -> torch.Tensor:
    """Memory of a tensor's layout: random floats (zeros may run faster), zero ints (any of which is a valid index).

    ``rows``, where it holds the ends of groups of rows: how many there are; the groups are equally large then.
    """
    length = 1 + sum((n - 1) * s for n, s in zip(decl.shape, decl.stride, strict=True) if n > 0)
    if rows is not None:
        return torch.arange(1, length + 1, device=device).mul(rows).div(length, rounding_mode="floor").to(decl.dtype)
    made = torch.zeros(length, dtype=decl.dtype, device=device)
    return made.uniform_() if decl.dtype.is_floating_point else made


def launch_over(variant: Variant, compiled: CompiledKernel, slots_of: Mapping[str, int]) -> KernelLaunch:
    """One launch of a kernel over buffers in slots, and hidden memory in another."""
    kernel, config = variant
    parameters: list[Parameter] = [SlotPointer(slots_of[buffer]) for buffer in kernel.buffers]
    pointers: list[Parameter] = [Number(0)] * compiled.hidden_pointers
    if HIDDEN in slots_of:
        pointers[0] = SlotPointer(slots_of[HIDDEN])
    parameters += [*map(Number, kernel.streams), *pointers]
    counts = (*kernel.grid, "1", "1", "1")[:3]
    x, y, z = (expression(count, {}, dict(config.constants)) for count in counts)
    return KernelLaunch(0, tuple(parameters), (x, y, z))
