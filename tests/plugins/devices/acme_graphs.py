"""Graph capture of the device "acme": pools of its allocator, and recordings of kernels and library calls."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

import turret
from turret.hooks.devices import Segment
from turret.hooks.graph_capture import (
    GraphCapture,
    HeldBack,
    KnownCall,
    MemoryPool,
    Patch,
    RecordedCall,
    RecordedNode,
    Recording,
    places_of,
)

Checkpoint = tuple[tuple[int, int], ...]
"""Address and length of each block in use."""

MISALIGNED = -16
"""The status of a sequence of which a part was recorded with memory that begins at other multiples."""

Launched = deque[tuple[str, int]]
"""What ran last, by name, with the stream."""


def _check(reason: bytes | None) -> None:
    if reason is not None:
        raise RuntimeError(reason.decode())


@contextlib.contextmanager
def selected(native: ctypes.CDLL, index: int) -> Iterator[None]:
    """A context in which one device is the current one."""
    before = native.acme_device()
    native.acme_set_device(index)
    try:
        yield
    finally:
        native.acme_set_device(before)


class AcmePool(MemoryPool):
    """A region of the device's memory, handed out first fit."""

    granule = 256

    def __init__(self, native: ctypes.CDLL, index: int) -> None:
        self.native, self.index, self.handle = native, index, native.acme_pool(index)
        self._lock = threading.Lock()
        weakref.finalize(self, native.acme_pool_drop, self.handle)

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise turret.TurretError("somebody allocates in this pool already, which CUDA's allocator does not take")
        try:
            before = self.native.acme_pool_enter(self.handle)
            try:
                yield
            finally:
                _leave(self.native, before)
        finally:
            self._lock.release()

    def checkpoint(self) -> Checkpoint:
        room = 64
        while True:
            pairs = (ctypes.c_int64 * (2 * room))()
            count = self.native.acme_pool_checkpoint(self.handle, pairs, room)
            if count <= room:
                return tuple((pairs[2 * n], pairs[2 * n + 1]) for n in range(count))
            room = 2 * count

    def bytes_in_use(self, checkpoint: Checkpoint) -> int:
        return sum(length for _, length in checkpoint)

    def restore(self, checkpoint: Checkpoint, dead: Sequence[int]) -> None:
        pairs = (ctypes.c_int64 * (2 * len(checkpoint)))(*(word for block in checkpoint for word in block))
        gone = (ctypes.c_int64 * len(dead))(*dead)
        reason = self.native.acme_pool_restore(self.handle, pairs, len(checkpoint), gone, len(dead))
        if reason is not None:
            raise turret.TurretError(reason.decode())

    def invalidate(self, storage: torch.UntypedStorage, message: str) -> None:
        self.native.acme_invalidate(storage._cdata, message.encode())

    def segments(self) -> list[range]:
        length = ctypes.c_int64()
        start = self.native.acme_pool_segment(self.handle, ctypes.byref(length))
        return [range(start, start + length.value)]

    @property
    def reserved_bytes(self) -> int:
        return self.native.acme_pool_reserved(self.handle)


def _leave(native: ctypes.CDLL, before: int | None) -> None:
    mine = native.acme_pool_enter(before)
    for handle in (mine, before):
        if handle is not None:
            native.acme_pool_drop(handle)


class AcmeRecording(Recording):
    """Work with the addresses that it gets, as bytes that can be patched."""

    def __init__(self, native: ctypes.CDLL, handle: int, launched: Launched, calls: Sequence[RecordedCall]) -> None:
        self._native, self._handle, self._launched, self.calls = native, handle, launched, calls
        weakref.finalize(self, native.acme_recording_drop, handle)
        self._count = native.acme_recording_length(handle)
        self._kinds = [native.acme_node_kind(handle, n).decode() for n in range(self._count)]
        self._names = [native.acme_node_name(handle, n).decode() for n in range(self._count)]
        self._bytes = [native.acme_node_bytes(handle, n) for n in range(self._count)]
        self._at = [native.acme_node_arguments(handle, n) for n in range(self._count)]

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        arguments = [
            ctypes.string_at(at, count) if count else b"" for at, count in zip(self._at, self._bytes, strict=True)
        ]
        return tuple(map(RecordedNode, self._kinds, self._names, arguments))

    def patch(self, patches: Sequence[Patch]) -> None:
        for patch in patches:
            if not 0 <= patch.offset <= self._bytes[patch.node] - 8:
                raise turret.TurretError(f"{patch} lies outside of the node's {self._bytes[patch.node]} bytes")
        for patch in patches:
            ctypes.memmove(self._at[patch.node] + patch.offset, struct.pack("<Q", patch.address), 8)

    def replay(self, stream: int) -> None:
        _check(self._native.acme_replay(self._handle))
        self._launched.extend((name, stream) for name in self._names)

    def why_not_launched(self, nodes: range) -> str:
        others = [self._names[n] for n in nodes if self._kinds[n] not in ("kernel", "clear")]
        return f"{others[0]} is launched with its recording alone" if others else ""

    def let_go(self) -> None:
        """Give its memory back: its nodes are launched with other memory alone."""
        self._native.acme_recording_let_go(self._handle)

    def launch(self, call: KnownCall, slots: Any, stream: int) -> None:
        """Run the nodes of a call with the addresses that a table of slots has."""
        for n in call.nodes:
            words = (ctypes.c_uint64 * (self._bytes[n] // 8)).from_buffer_copy(self.nodes[n].arguments)
            for place in call.words:
                if place.node == n:
                    words[place.offset // 8] = (slots[place.entry] or 0) + place.delta
            _check(self._native.acme_run_node(self._handle, n, words))
            self._launched.append((f"launched {self._names[n]}", stream))

    def replay_as(self, launch: Callable[[], object], stream: int) -> str:
        self._native.acme_rewrite_begin(self._handle)
        try:
            launch()
        finally:
            refusal = self._native.acme_rewrite_end()
        if refusal is not None:
            return refusal.decode()
        self.replay(stream)
        return ""


class AcmeCalls(threading.local):
    """Notes the library calls of the recording that this thread makes."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native
        self.noted: list[RecordedCall] = []
        self.pool: AcmePool | None = None
        self.held_back: HeldBack = {}
        self._begun: RecordedCall | None = None
        self._blocks: list[torch.Tensor] = []

    def begin(self, tensors: Sequence[torch.Tensor], stays: bool = False) -> None:
        if self.pool is None:
            return
        wanted = self.held_back.get(len(self.noted), ())
        taken = [(torch.empty(b.nbytes, dtype=torch.uint8, device="acme"), b.is_hole) for b in wanted]
        self._blocks = [memory for memory, is_hole in taken if not is_hole]
        del taken
        first, allocated = self._native.acme_recorded_nodes(), self._native.acme_pool_allocated(self.pool.handle)
        call = RecordedCall.of(range(first, first), [t for t in tensors if t.device.type == "acme"], stays)
        self._begun = attrs.evolve(call, allocated=-allocated)

    def end(self, results: Sequence[torch.Tensor] = ()) -> None:
        if self.pool is None or self._begun is None:
            return
        begun, self._begun, self._blocks = self._begun, None, []
        nodes = range(begun.nodes.start, self._native.acme_recorded_nodes())
        allocated = begun.allocated + self._native.acme_pool_allocated(self.pool.handle)
        given = places_of(t for t in results if t.device.type == "acme")
        self.noted.append(attrs.evolve(begun, nodes=nodes, allocated=allocated, results=given))

    @contextlib.contextmanager
    def noting(self, pool: AcmePool, held_back: HeldBack) -> Iterator[list[RecordedCall]]:
        """Within it calls are noted."""
        self.noted, self.pool, self.held_back = [], pool, held_back
        try:
            yield self.noted
        finally:
            self.pool, self._begun, self._blocks = None, None, []


class AcmeCapture(GraphCapture):
    """Recording by the driver."""

    def __init__(self, native: ctypes.CDLL, launched: Launched) -> None:
        self._native, self._launched = native, launched
        self._calls = AcmeCalls(native)

    def observer(self) -> AcmeCalls:
        return self._calls

    def pool(self, index: int) -> AcmePool:
        return AcmePool(self._native, index)

    def is_recording(self, index: int) -> bool:
        return bool(self._native.acme_recording())

    def sequence(
        self,
        index: int,
        parts: Sequence[Segment | KnownCall],
        entries: int,
        aligned: Sequence[int] = (),
        stored: Sequence[int] = (),
    ) -> Segment:
        for part in parts:
            if isinstance(part, KnownCall):
                part.recording.let_go()

        def run(slots_at: int, sizes_at: int, stream: int) -> int:
            slots = (ctypes.c_void_p * entries).from_address(slots_at)
            if any((slots[entry] or 0) % 16 for entry in aligned):
                return MISALIGNED
            return run_aligned(slots_at, sizes_at, stream)

        def run_aligned(slots_at: int, sizes_at: int, stream: int) -> int:
            slots = (ctypes.c_void_p * entries).from_address(slots_at)
            for part in parts:
                if isinstance(part, Segment):
                    if status := part.run(*part.leading, slots_at, sizes_at, stream):
                        return status
                else:
                    part.recording.launch(part, slots, stream)
            return 0

        def recover(status: int, slots: Any, sizes: Any, stream: int, tensors: Mapping[int, torch.Tensor]) -> None:
            if status != MISALIGNED:
                raise IndexError(f"acme: status {status} of a sequence")
            run_aligned(ctypes.addressof(slots), ctypes.addressof(sizes), stream)  # any address will do for acme

        return Segment(run, recover)

    def record(
        self,
        index: int,
        run: Callable[[], Any],
        pool: MemoryPool | None = None,
        *,
        library_calls: bool = True,
        held_back: HeldBack | None = None,
    ) -> Recording:
        native = self._native
        if native.acme_recording():
            raise turret.TurretError("this thread records already; one recording cannot begin inside of another")
        if pool is None:
            pool = self.pool(index)
        if not isinstance(pool, AcmePool) or pool.index != index:
            raise turret.TurretError(f"{pool} is no pool of acme:{index}; make one with pool({index})")
        with selected(native, index), pool.allocating():
            native.acme_record_begin(pool.handle)
            try:
                with self._calls.noting(pool, held_back or {}) as calls:
                    run()
            finally:
                handle = native.acme_record_end()
                failure = native.acme_recording_failure(handle).decode()
                made = AcmeRecording(native, handle, self._launched, calls)
        if failure:
            raise RuntimeError(failure)
        return made
