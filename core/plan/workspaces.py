"""Workspaces: the memory that one call of a plan works in, kept from call to call."""

from __future__ import annotations

import ctypes

import torch

from turret.plan import Plan, Slot
from turret.plan.bounds import extent_position, note_static_extent, table_length
from turret.plan.sizes import static_sizes

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load of today's CPUs."""


class Workspace:
    """Arena, slot table, size table and the arena's tensors, for one call at a time; the arena is kept between calls.

    ``slots`` and ``sizes`` are the native tables (addresses and int64), ``tables`` their own addresses; ``tensors``
    are the tensors of arena slots that extern calls or copies use, in the order asked for.
    """

    __slots__ = ("arena", "sizes", "slots", "tables", "tensors")

    def __init__(self, plan: Plan, wanted: tuple[int, ...], further: int = 0) -> None:
        self.slots = (ctypes.c_void_p * max(1, plan.table_slots + further))()
        self.sizes = (ctypes.c_int64 * max(1, table_length(plan)))()
        self.tables = ctypes.addressof(self.slots), ctypes.addressof(self.sizes)
        self.arena = torch.empty(
            plan.arena_bytes + ALIGNMENT if plan.arena_bytes else 0, dtype=torch.uint8, device=plan.device
        )
        start = -self.arena.data_ptr() % ALIGNMENT
        for number, slot in enumerate(plan.slots):
            if slot.storage == "arena":
                self.slots[number] = self.arena.data_ptr() + start + slot.number
                if plan.check_bounds:
                    layout = static_sizes(slot.shape), static_sizes(slot.stride)
                    note_static_extent(self.sizes, extent_position(plan, number), *layout)
        self.tensors = tuple(self._tensor(plan.slots[number], start) for number in wanted)

    def _tensor(self, slot: Slot, start: int) -> torch.Tensor:
        return _tensor_at(self.arena.untyped_storage(), start + slot.number, slot, self.arena.device)


def _tensor_at(storage: torch.UntypedStorage, offset: int, slot: Slot, device: torch.device) -> torch.Tensor:
    """The tensor of a slot, ``offset`` bytes into memory."""
    flat = torch.empty(0, dtype=slot.torch_dtype, device=device)
    shape, stride = static_sizes(slot.shape), static_sizes(slot.stride)
    return flat.set_(storage, offset // slot.torch_dtype.itemsize, shape, stride)


def device_table_lengths(plan: Plan) -> tuple[int, int]:
    """Entries of the slot table (the arena's address comes last) and of the size table where arenas are not kept."""
    return plan.table_slots + 1, max(1, len(plan.size_symbols))


class DeviceWorkspace:
    """Slot table, size table and the arena's tensors of a plan whose device keeps no arenas.

    Between calls a workspace keeps its tensor objects but no memory: ``open`` takes the arena from torch's caching
    allocator on the current stream and ``close`` returns it.  Reuse is then ordered as torch orders it (a block
    freed on a stream is used again on that stream), graph capture finds the arena in its private pool, any thread
    and stream may run any workspace, and forward and backward never hold memory at the same time.
    """

    __slots__ = ("_arena", "_storage", "sizes", "slots", "tables", "tensors")

    def __init__(self, plan: Plan, wanted: tuple[int, ...], further: int = 0) -> None:
        slots, sizes = device_table_lengths(plan)
        self._arena = slots - 1
        self.slots, self.sizes = (ctypes.c_void_p * (slots + further))(), (ctypes.c_int64 * sizes)()
        self.tables = ctypes.addressof(self.slots), ctypes.addressof(self.sizes)
        arena = torch.empty(plan.arena_bytes, dtype=torch.uint8, device=plan.device)
        self._storage = arena.untyped_storage()
        slots_wanted = [plan.slots[number] for number in wanted]
        self.tensors = tuple(_tensor_at(self._storage, slot.number, slot, arena.device) for slot in slots_wanted)
        self.close()

    def open(self, bytes_: int) -> None:
        """Take memory for a call, or more of it in the middle of one; its address goes behind the slots."""
        self._storage.resize_(bytes_)
        self.slots[self._arena] = self._storage.data_ptr()

    def close(self) -> None:
        """Return the memory; what was queued on the stream still runs before anything that takes it next."""
        self._storage.resize_(0)


class WorkspacePool:
    """Idle workspaces of a plan.  ``take`` and ``give`` are safe from any thread (list operations are atomic).

    ``further``: entries that the table of slots has behind those of the plan.
    """

    __slots__ = ("_further", "_idle", "_kind", "_plan", "_wanted")

    def __init__(self, plan: Plan, wanted: tuple[int, ...], keeps_arena: bool, further: int = 0) -> None:
        self._plan, self._wanted, self._further = plan, wanted, further
        self._kind = Workspace if keeps_arena else DeviceWorkspace
        self._idle: list[Workspace | DeviceWorkspace] = []

    def take(self) -> Workspace | DeviceWorkspace:
        """A workspace nobody else uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._kind(self._plan, self._wanted, self._further)

    def give(self, workspace: Workspace | DeviceWorkspace) -> None:
        """Hand a workspace back."""
        self._idle.append(workspace)

    def give_failed(self, workspace: Workspace | DeviceWorkspace) -> None:
        """Hand the workspace of a call that failed back; one that may hold memory of a stream goes."""
        if self._kind is Workspace:
            self.give(workspace)

    def clear(self) -> None:
        """Free the memory of idle workspaces."""
        self._idle.clear()
