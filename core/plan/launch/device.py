"""The kernels of a plan on a CUDA device: binaries from the cache, launched a segment at a time."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from turret.errors import CodegenError, TurretError
from turret.plan.launch.driver_library import LAUNCHER, message
from turret.plan.launch.enums import Status
from turret.plan.launch.lazy_kernels import binary_arguments, compile_missing, lazy_kernel
from turret.plan.launch.table import KernelBinary, LaunchTable, LazyKernel
from turret.storage import codec
from turret.storage.artifact_cache import Entry, Store
from turret.storage.fork_safety import Lock

TABLE = "launches.json"
_RECOVERABLE = (Status.MISALIGNED, Status.NOT_COMPILED)
_kernels: dict[tuple[Any, ...], int] = {}
_lock = Lock()


class DeviceLibrary:
    """The segments of one plan on one device, from the launch table and the binaries of an entry.

    The launcher comes from ``store``.  ``slots`` and ``sizes``: how many entries the two tables have that segments are
    run with; a launch table that reads behind them is refused with a ``CodegenError``.

    Kernels with equal binaries are loaded once a process and device, when a segment first runs or ``prepare`` is
    called (which graph capture needs beforehand: a capture should not load modules).  A lazy kernel is loaded when it
    is compiled and wanted.
    """

    def __init__(
        self,
        entry: Entry,
        store: Store | None,
        device: int,
        slots: int,
        sizes: int,
        library: ctypes.CDLL | None = None,
    ) -> None:
        self.library = LAUNCHER.load(store) if library is None else library
        self.table: LaunchTable = codec.loads(entry[TABLE].decode())
        handles = [self._kernel(kernel, entry, store) for kernel in self.table.kernels]
        self._handles = (ctypes.c_void_p * max(1, len(handles)))(*handles)
        self.segments = {
            name: self._segment(device, words, slots, sizes) for name, words in self.table.segments.items()
        }
        weakref.finalize(self, _free, self.library, list(self.segments.values()))

    def _kernel(self, kernel: KernelBinary | LazyKernel, entry: Entry, store: Store | None) -> int:
        if isinstance(kernel, LazyKernel):
            return lazy_kernel(self.library, kernel, store)
        return _kernel(self.library, kernel, entry[kernel.file])

    def _segment(self, device: int, words: tuple[int, ...], slots: int, sizes: int) -> int:
        table, kernels = (ctypes.c_int64 * len(words))(*words), len(self.table.kernels)
        made: int = self.library.turret_segment(device, table, len(words), self._handles, kernels, slots, sizes)
        if not made:
            raise CodegenError(message(self.library))
        return made

    def function(self, name: str) -> Segment:
        """``segment(slots, sizes, stream) -> status`` of a segment."""
        run = self.library.turret_segment_run
        return Segment(self.library, run, self.segments[name], self.table.stored.get(name, ()), self)

    def prepare(self) -> None:
        """Load every kernel that is compiled now; ``CodegenError`` where the driver refuses one."""
        for handle in self.segments.values():
            if self.library.turret_segment_prepare(handle):
                raise CodegenError(message(self.library))


def _free(library: ctypes.CDLL, segments: list[int]) -> None:
    for segment in segments:
        library.turret_segment_free(segment)


def _kernel(library: ctypes.CDLL, binary: KernelBinary, image: bytes) -> int:
    shape = (binary.function, binary.threads, binary.shared, binary.cluster, binary.cooperative, binary.programmatic)
    key = (library._handle, hashlib.sha256(image).digest(), *shape)
    with _lock:
        if key not in _kernels:
            image, nbytes, *how = binary_arguments(binary, image)
            _kernels[key] = library.turret_kernel(image, nbytes, binary.function.encode(), *how)
        return _kernels[key]


class Segment:
    """A run of kernels, launched in one native call that holds no lock of Python's.

    ``run`` takes its ``handle``, which is good as long as ``keeper`` lives, and the tables and the stream; ``stored``:
    slots that it writes.
    """

    __slots__ = ("__weakref__", "handle", "keeper", "library", "run", "stored")

    def __init__(
        self,
        library: ctypes.CDLL,
        run: Callable[[int, Any, Any, int], int],
        handle: int,
        stored: Iterable[int],
        keeper: object,
    ) -> None:
        self.library, self.run, self.handle, self.stored, self.keeper = library, run, handle, frozenset(stored), keeper

    def recover(
        self, status: int, slots: Any, sizes: Any, stream: int, tensors: Mapping[int, torch.Tensor], names: str
    ) -> None:
        """After a run that launched nothing: compile what is not compiled, align what is not aligned and run again, or
        raise.

        A tensor that the user cut out of a larger one may start anywhere, where kernels were compiled for 16-byte
        accesses: the segment then works on an aligned copy.  ``tensors`` are those by slot.
        """
        copies: dict[int, torch.Tensor] = {}
        while status & 0xFF in _RECOVERABLE:
            if not compile_missing(status):
                slot = status >> 8
                if slot not in tensors:
                    raise TurretError(f"slot {slot} of {names} is not aligned; report this as a bug of the memory plan")
                copies[slot] = _aligned_copy(tensors[slot])
                slots[slot] = copies[slot].data_ptr()
            status = self.run(self.handle, slots, sizes, stream)
        if status & 0xFF == Status.SIZE_TOO_LARGE:
            raise TurretError(
                f"a size of {sizes[status >> 8]} does not fit the 32-bit arithmetic of {names}; "
                "mark that dimension static, or run this input eagerly"
            )
        if status:
            raise RuntimeError(f"{message(self.library)} (in {names})")
        for slot, copy in copies.items():
            slots[slot] = tensors[slot].data_ptr()
            if slot in self.stored:
                tensors[slot].copy_(copy)


def _aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements with the same strides at an aligned address."""
    length = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    flat = torch.empty(length, dtype=tensor.dtype, device=tensor.device)
    flat.copy_(tensor.as_strided((length,), (1,)))
    return flat.as_strided(tensor.shape, tensor.stride())
