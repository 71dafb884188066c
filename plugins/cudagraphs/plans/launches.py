"""A plan of kernels and copies of bytes alone, run over memory that its caller gives, for whatever sizes.

Such a plan's grids, size arguments and addresses are known by construction, so that one recording of it can be written
anew for other sizes.  Its intermediate values lie in one block of memory, whose layout is decided once for each sizes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import attrs

from turret.hooks.devices import ByteCopier, PlanLibrary
from turret.hooks.graph_capture import extent
from turret.plan import Allocate, Call, Compute, Copy, Free, Launch, Plan, View
from turret.plan.bounds import table_length
from turret.plan.direct import roots
from turret.plan.sizes import Sizes, compile_size, compile_sizes, source_reader
from turret.plugins.cudagraphs.recording.recorder import NotRecordable
from turret.plugins.cudagraphs.work import Key, float_bits

_ALIGNMENT = 512
"""Bytes; where intermediate values begin, as those of torch's allocators do."""

_LAYOUTS_KEPT = 1024
"""Sizes whose layout of memory is kept."""


def why_one_size(plan: Plan, byte_copier: Callable[[], ByteCopier | None]) -> str:
    """Why a recording of a plan is right for its sizes alone; empty where it can be written anew.

    ``byte_copier`` gives what its device copies bytes by.
    """
    if plan.check_bounds:
        return "its kernels check every access"
    for step in plan.steps:
        if isinstance(step, Call):
            return f"grids and arguments of {step.op} are not known ahead of a call"
        if isinstance(step, Copy) and not _copies_bytes(plan, step):
            return f"what copies {plan.slots[step.source].name} to another layout is chosen by torch in each call"
        if isinstance(step, Copy) and byte_copier() is None:
            return f"{plan.device} has no copies that a recording takes over"
    if not any(isinstance(step, Launch) for step in plan.steps):
        return "it launches nothing"
    return ""


def _copies_bytes(plan: Plan, step: Copy) -> bool:
    """Whether a copy is one of bytes, if its tensors have no gaps."""
    source, target = plan.slots[step.source], plan.slots[step.target]
    layouts = {(slot.shape, slot.stride, slot.torch_dtype) for slot in (source, target)}
    return len(layouts) == 1 and not source.torch_dtype.is_complex  # those may be conjugated when they are read


@attrs.frozen
class _CopyBytes:
    """A copy between two slots; ``number`` is its place in ``MemoryLayout.copies``."""

    target: int
    source: int
    number: int


@attrs.frozen
class MemoryLayout:
    """Where the intermediate values of a call lie in a block of ``nbytes`` bytes: offsets by slot, and all numbers.

    ``views``: how far a view begins behind its base, in bytes; ``copies``: the bytes of each copy, None where its
    tensors have gaps.
    """

    nbytes: int
    offsets: dict[int, int]
    views: dict[int, int]
    sizes: tuple[int, ...]
    copies: tuple[int | None, ...]


class PlanLaunches:
    """The launches of a plan (that takes its outputs' memory behind its inputs), of which ``why_one_size`` is empty.

    ``symbols``: those of the size key.
    """

    def __init__(
        self, plan: Plan, library: PlanLibrary, symbols: Sequence[str], byte_copier: Callable[[], ByteCopier | None]
    ) -> None:
        self._plan, self._symbols = plan, tuple(symbols)
        self._copies = [step for step in plan.steps if isinstance(step, Copy)]
        self._copy = byte_copier() if self._copies else None
        self._work: list[Any] = []
        copied: set[int] = set()
        used: set[int] = set()
        for step in plan.steps:
            if isinstance(step, Launch):
                segment = library.segment(step)
                self._work.append(segment)
                used |= set(step.slots)
            elif isinstance(step, Copy):
                self._work.append(_CopyBytes(step.target, step.source, self._copies.index(step)))
                copied |= {step.target, step.source}
        self._locate_all(used | copied, copied)
        self._find_floats(plan)
        self._layouts: dict[Key, MemoryLayout] = {}
        self._slot_count = plan.table_slots + 1
        self._slots_type = ctypes.c_void_p * self._slot_count
        self._sizes_type = ctypes.c_int64 * max(1, table_length(plan))

    def _locate_all(self, used: Set[int], copied: Set[int]) -> None:
        """Note how the addresses of slots are known."""
        plan = self._plan
        self._offset_texts = {slot: texts for slot, (_, texts) in roots(plan).items()}
        self._bases = {slot: root for slot, (root, _) in roots(plan).items()}
        self._inputs: list[tuple[int, int]] = []
        self._fixed: dict[int, int] = {}
        self._own: list[int] = []
        self._in_arena: list[tuple[int, int]] = []
        for slot in sorted(used | set(self._bases.values())):
            self._locate(slot)
        copied = {self._bases.get(slot, slot) for slot in copied}
        self._copied_inputs = [position for slot, position in self._inputs if slot in copied]
        self._viewed = [slot for slot in self._bases if slot in used]

    def _find_floats(self, plan: Plan) -> None:
        """Note how the floats that kernels are handed are known."""
        readers = [(plan.size_symbols.index(s), plan.size_sources[s]) for s in plan.float_symbols
                   if s in plan.size_sources]  # fmt: skip
        self._floats = tuple((n, source.input, source_reader(source)) for n, source in readers)
        self._computed_floats = [
            (plan.size_symbols.index(s.symbol), compile_size(s.text))
            for s in plan.steps
            if isinstance(s, Compute) and s.symbol in plan.float_symbols
        ]

    def _locate(self, slot: int) -> None:
        """Note how the address of a slot is known."""
        found = self._plan.slots[slot]
        if found.storage == "input":
            self._inputs.append((slot, self._plan.inputs.index(slot)))
        elif found.storage == "constant":
            self._fixed[slot] = self._plan.constants[found.name].data_ptr()
        elif found.storage == "arena":
            self._in_arena.append((slot, found.number))
        elif found.storage == "own":
            self._own.append(slot)
        elif found.storage != "view":
            raise NotRecordable(f"{found.name} lies where a call put it")

    def nbytes(self, key: Key) -> int:
        """Bytes of intermediate values in a call of these sizes."""
        return self.layout(key).nbytes

    def layout(self, key: Key) -> MemoryLayout:
        """Where the intermediate values of a call of these sizes lie, and all numbers of it that are no floats."""
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            found = self._layouts[key] = self._laid_out(key)
        return found

    def _laid_out(self, key: Key) -> MemoryLayout:
        plan = self._plan
        sizes: Sizes = dict(zip(self._symbols, key, strict=True))
        for step in plan.steps:
            if isinstance(step, Compute) and step.symbol not in plan.float_symbols:
                sizes[step.symbol] = compile_size(step.text)(sizes)
        begin = 0
        if plan.arena_bytes or plan.scratch_bytes:
            begin = _aligned(plan.scratch_offset + compile_size(plan.scratch_bytes)(sizes))
        offsets, nbytes = _packed(plan, self._bases, sizes, begin)
        views = {
            slot: sum(compile_size(text)(sizes) for text in texts) * plan.slots[slot].torch_dtype.itemsize
            for slot, texts in self._offset_texts.items()
        }
        numbers = tuple(sizes.get(symbol, 0) for symbol in plan.size_symbols)
        return MemoryLayout(nbytes, offsets, views, numbers, tuple(self._bytes(step, sizes) for step in self._copies))

    def _bytes(self, step: Copy, sizes: Sizes) -> int | None:
        """Bytes of a copy."""
        slot = self._plan.slots[step.source]
        shape, stride = compile_sizes(slot.shape)(sizes), compile_sizes(slot.stride)(sizes)
        return math.prod(shape) * slot.torch_dtype.itemsize if extent(shape, stride) == math.prod(shape) else None

    def launch(self, inputs: Sequence[Any], key: Key, memory: int, stream: int) -> None:
        """Launch all on a stream, over inputs and outputs and ``memory``, where ``nbytes(key)`` bytes are.

        Raises ``NotRecordable`` where kernels do not take these tensors as they lie.
        """
        layout = self.layout(key)
        slots = self._addresses(inputs, layout, memory)
        sizes = self._sizes_type(*layout.sizes)
        if self._floats or self._computed_floats:
            self._write_floats(sizes, inputs, layout)
        slots_at, sizes_at = ctypes.addressof(slots), ctypes.addressof(sizes)
        for work in self._work:
            if isinstance(work, _CopyBytes):
                self._copy_bytes(slots[work.target] or 0, slots[work.source] or 0, layout.copies[work.number], stream)
                continue
            status = work.run(*work.leading, slots_at, sizes_at, stream)
            while status and work.compile_missing(status):
                status = work.run(*work.leading, slots_at, sizes_at, stream)
            if status:
                raise NotRecordable(f"its kernels do not take these tensors as they lie (status {status})")

    def _addresses(self, inputs: Sequence[Any], layout: MemoryLayout, memory: int) -> ctypes.Array[ctypes.c_void_p]:
        """The table of where slots lie."""
        if any(inputs[position].is_neg() for position in self._copied_inputs):
            raise NotRecordable("it copies a tensor that is negated when it is read")
        slots = self._slots_type()
        for slot, address in self._fixed.items():
            slots[slot] = address
        for slot, position in self._inputs:
            slots[slot] = inputs[position].data_ptr()
        for slot in self._own:
            slots[slot] = memory + layout.offsets[slot]
        for slot, offset in self._in_arena:
            slots[slot] = memory + offset
        for slot in self._viewed:
            slots[slot] = (slots[self._bases[slot]] or 0) + layout.views[slot]
        slots[self._slot_count - 1] = memory
        return slots

    def _copy_bytes(self, target: int, source: int, nbytes: int | None, stream: int) -> None:
        assert self._copy is not None  # plans that copy are recorded for any size where the device has one
        if nbytes is None or 0 < abs(target - source) < nbytes:
            raise NotRecordable("it copies between tensors that have gaps, or lie over each other")
        if not nbytes or target == source:
            return
        if status := self._copy(target, source, nbytes, stream):
            raise NotRecordable(f"a copy of {nbytes} bytes is refused (status {status})")

    def _write_floats(self, sizes: Any, inputs: Sequence[Any], layout: MemoryLayout) -> None:
        known: dict[str, Any] = dict(zip(self._plan.size_symbols, layout.sizes, strict=True))
        for number, position, read in self._floats:
            known[self._plan.size_symbols[number]] = value = read(inputs[position])
            sizes[number] = _signed(value)
        for number, compute in self._computed_floats:
            known[self._plan.size_symbols[number]] = value = compute(known)
            sizes[number] = _signed(value)


def _signed(value: float) -> int:
    """The bits of a float as the table of sizes holds them."""
    bits = float_bits(value)
    return bits - (1 << 64) if bits >> 63 else bits


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _packed(plan: Plan, bases: Mapping[int, int], sizes: Sizes, begin: int) -> tuple[dict[int, int], int]:
    """Offsets of what a plan allocates, from ``begin`` on, first fit, and where all of it ends.

    Memory is used again when its tensor and all views of it are dropped: kernels run in the order of their launches.
    """
    last = _last_uses(plan, bases)
    offsets: dict[int, int] = {}
    live: dict[int, tuple[int, int]] = {}
    end = begin
    for number, step in enumerate(plan.steps):
        if isinstance(step, Allocate):
            slot = plan.slots[step.slot]
            shape, stride = compile_sizes(slot.shape)(sizes), compile_sizes(slot.stride)(sizes)
            nbytes = _aligned(max(1, extent(shape, stride) * slot.torch_dtype.itemsize))
            offset = _first_fit(sorted(live.values()), nbytes, begin)
            offsets[step.slot], live[step.slot] = offset, (offset, offset + nbytes)
            end = max(end, offset + nbytes)
        elif isinstance(step, Free):
            for slot_number in [s for s in live if last[s] == number]:
                del live[slot_number]
    return offsets, end


def _last_uses(plan: Plan, bases: Mapping[int, int]) -> dict[int, int]:
    """The step that drops what is left of each allocated tensor; the number of steps where none does."""
    freed = {slot: n for n, step in enumerate(plan.steps) if isinstance(step, Free) for slot in step.slots}
    found: dict[int, int] = {}
    for step in plan.steps:
        made = step.slot if isinstance(step, Allocate | View) else None
        if made is not None:
            root = bases.get(made, made)
            found[root] = max(found.get(root, 0), freed.get(made, len(plan.steps)))
    return found


def _first_fit(taken: Sequence[tuple[int, int]], nbytes: int, begin: int) -> int:
    offset = begin
    for first, last in taken:
        if offset + nbytes <= first:
            break
        offset = max(offset, last)
    return offset
