"""Records the library calls of a plan, to know what they launch and which words of it are addresses of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.errors import TurretError
from turret.graph.externs import fast_callable
from turret.hooks.graph_capture import WORD, KnownCall, RecordedCall, Recording, TableWord, extent, tensor_at
from turret.plan import Call, Plan, SlotRef
from turret.plan.direct import given_slots, made_slots, own_entry, roots, table_place
from turret.plan.modes import below_autograd
from turret.plan.sizes import static_sizes
from turret.plugins.cudagraphs.recording.recorder import GRANULE, AllocatingCall, Item, Recorder, ResultPlace, Words
from turret.plugins.cudagraphs.work import RecordingDevice

_ATTEMPTS = 3
"""How often calls are recorded and compared, at most."""


@attrs.frozen
class KnownCalls:
    """Calls whose launches are known, by their steps; why those of others are not, by the name of their op; and the
    bytes that the launches work in beside the memory of the plan."""

    calls: dict[int, KnownCall]
    reasons: dict[str, str]
    own_bytes: int


class _OwnMemory:
    """What the pool of a recording holds: workspaces that libraries took there, and that lie elsewhere in each run."""

    def __init__(self, segments: Sequence[range], entry: int) -> None:
        self._segments, self._entry = segments, entry
        self._begins: dict[int, int] = {}
        self.nbytes = 0

    def table_words(self, recording: Recording, nodes: range, known: Sequence[TableWord]) -> Iterator[TableWord]:
        """The words of some nodes that hold addresses in it, but for those that are ``known`` to be of something else;
        they are the same in all recordings."""
        others = {(word.node, word.offset) for word in known}
        for node in nodes:
            for place, word in enumerate(recording.nodes[node].words):
                for segment in self._segments:
                    if word in segment and (node, place * WORD) not in others:
                        yield TableWord(node, place * WORD, self._entry, self._begin(segment) + word - segment.start)

    def _begin(self, segment: range) -> int:
        """How far from the beginning what lay in a segment lies."""
        if segment.start not in self._begins:
            self._begins[segment.start] = self.nbytes
            self.nbytes += len(segment)
        return self._begins[segment.start]


def record_calls(
    plan: Plan, calls: Mapping[int, Call], recording_device: RecordingDevice, keeps_arena: bool
) -> KnownCalls:
    """Which calls of a plan, by their steps, have launches that are known; all layouts are numbers.

    What kernels are handed uninitialised may look like an address that moved, by chance: those of which something is
    not understood are recorded once more.  Raises what the device raises.
    """
    found, left = KnownCalls({}, {}, 0), dict(calls)
    for _ in range(_ATTEMPTS):
        known = _CallRecorder(plan, left, recording_device, keeps_arena).record()
        nbytes = max(found.own_bytes, known.own_bytes)
        found = KnownCalls(found.calls | known.calls, known.reasons, nbytes)
        left = {number: call for number, call in left.items() if number not in known.calls}
        if not left:
            break
    return found


class _CallRecorder:
    """Calls of a plan by their steps: one of each kind is recorded, one behind the other."""

    def __init__(
        self, plan: Plan, calls: Mapping[int, Call], recording_device: RecordingDevice, keeps_arena: bool
    ) -> None:
        self._plan, self._device, self._keeps_arena = plan, recording_device, keeps_arena
        self._roots = {slot: (root, sum(map(int, at))) for slot, (root, at) in roots(plan).items() if _are_known(at)}
        self._kinds = self._alike(calls)
        self._calls = {next(iter(kind)): calls[next(iter(kind))] for kind in self._kinds}
        self._results = dict(self._allocating())
        self._unlike: set[int] = set()
        """Steps of calls whose results are laid out in another way than the plan says."""

    def _alike(self, calls: Mapping[int, Call]) -> list[dict[int, list[int]]]:
        """The calls of each kind by their steps, with the slots whose memory each works on, in the same order.

        Layers repeat: what a library launches is decided by the op, by how tensors are laid out, which of them lie in
        one piece of memory and where in it, and by the other arguments.
        """
        found: dict[Any, dict[int, list[int]]] = {}
        for number, call in calls.items():
            slots: list[int] = []
            made = [slot if slot is None else SlotRef(slot) for slot in (*call.outputs, call.into)]
            kind = (call.op, *(self._described(value, slots) for value in (call.args, call.kwargs, made)))
            found.setdefault(kind, {})[number] = slots
        return list(found.values())

    def _described(self, value: Any, slots: list[int]) -> Any:
        """What calls of a kind have in common of an argument or a result; ``slots`` gets those it lies in."""
        if isinstance(value, SlotRef):
            root, offset = self._root(value.slot)
            if root not in slots:
                slots.append(root)
            found = self._plan.slots[value.slot]
            return slots.index(root), offset, found.shape, found.stride, found.dtype
        if isinstance(value, dict):
            return tuple((name, self._described(item, slots)) for name, item in value.items())
        if isinstance(value, list | tuple):
            return (type(value), *(self._described(item, slots) for item in value))
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), value.dtype  # at which nobody looks (``candidates``)
        return type(value), repr(value)

    def _allocating(self) -> Iterator[tuple[Item, AllocatingCall]]:
        """The slots of results that calls allocate."""
        for place, call in enumerate(self._calls.values()):
            for slot in made_slots(call) if call.into is None else ():
                yield ("slot", slot), AllocatingCall(place, self._nbytes(slot))

    def _root(self, slot: int) -> tuple[int, int]:
        """Whose memory a slot lies in, and how many elements behind where that begins."""
        return self._roots.get(slot, (slot, 0))

    def record(self) -> KnownCalls:
        """Which calls' launches are known."""
        pool = self._device.capture.pool(self._device.index)
        recorder = Recorder(self._device, pool, pool.checkpoint())
        recording, words, unclear = recorder.compared(self._run, self._memory(), self._results)
        if len(recording.calls) != len(self._calls):
            return KnownCalls({}, {"all calls": "their launches cannot be told apart"}, 0)
        own = _OwnMemory(pool.segments(), own_entry(self._plan, self._keeps_arena))
        found: dict[int, KnownCall] = {}
        reasons: dict[str, str] = {}
        for (number, call), kind, recorded in zip(self._calls.items(), self._kinds, recording.calls, strict=True):
            slots = kind[number]
            reason = _why_not(recording, recorded, slots, words, unclear)
            if number in self._unlike:
                reason = "its results are laid out as nobody said"
            own_words: list[TableWord] = []
            if not reason:
                places = self._table_words(recorded, slots, slots, words)
                own_words = list(own.table_words(recording, recorded.nodes, places))
                reason = _why_unplaced(recording, recorded.nodes, [*places, *own_words])
            if reason:
                reasons.setdefault(call.op, reason)
                continue
            for member, its_slots in kind.items():
                places = self._table_words(recorded, slots, its_slots, words)
                found[member] = KnownCall(recording, recorded.nodes, (*places, *own_words))
        return KnownCalls(found, reasons, own.nbytes)

    def _memory(self) -> dict[Item, torch.Tensor]:
        """A tensor for each slot; they lie over each other, as nothing is read or written while calls are recorded."""
        touched = {slot for number, kind in zip(self._calls, self._kinds, strict=True) for slot in kind[number]}
        slots = sorted(slot for slot in touched if ("slot", slot) not in self._results)
        nbytes = {slot: self._nbytes(slot) for slot in slots}
        block = self._device.empty((max(nbytes.values()) + GRANULE * (len(slots) + 1),), (1,), torch.uint8)
        begin = block.data_ptr() + -block.data_ptr() % GRANULE
        memory: dict[Item, torch.Tensor] = {}
        for place, slot in enumerate(slots):
            made = self._tensor(slot, begin + place * GRANULE)
            made.untyped_storage().owner = block  # type: ignore[attr-defined]
            memory["slot", slot] = made
        return memory

    def _nbytes(self, slot: int) -> int:
        found = self._plan.slots[slot]
        return max(1, extent(static_sizes(found.shape), static_sizes(found.stride))) * found.torch_dtype.itemsize

    def _tensor(self, slot: int, address: int) -> torch.Tensor:
        found = self._plan.slots[slot]
        return tensor_at(
            address, static_sizes(found.shape), static_sizes(found.stride), found.torch_dtype, self._device.device
        )

    def _run(self, memory: Mapping[Item, Any]) -> list[ResultPlace]:
        """Run all calls; where the results lie that they allocate."""
        observer = self._device.capture.observer()
        if observer is None:
            raise TurretError(f"{self._device.device} tells nobody which calls it records")
        with below_autograd():
            here = dict(memory)
            for number, call in self._calls.items():
                tensors = {slot: self._at(slot, here) for slot in given_slots(call)}
                given = [_filled(value, tensors) for value in call.args]
                named = {name: _filled(value, tensors) for name, value in call.kwargs.items()}
                if call.into is not None:
                    named["out"] = tensors[call.into] = self._at(call.into, memory)
                observer.begin(tuple(tensors.values()))
                results = fast_callable(call.op)(*given, **named)
                if call.into is None:
                    here |= self._made(number, call, results if call.sequence else (results,))
                observer.end(tuple(here["slot", slot] for slot in made_slots(call)) if call.into is None else ())
            return [ResultPlace.of(here[item]) for item in self._results]

    def _made(self, number: int, call: Call, results: Sequence[Any]) -> dict[Item, torch.Tensor]:
        """The results of a call that allocates them."""
        made: dict[Item, torch.Tensor] = {}
        for slot, result in zip(call.outputs, results, strict=True):
            if slot is None:
                continue
            found = self._plan.slots[slot]
            layout = static_sizes(found.shape), static_sizes(found.stride), found.torch_dtype
            if (tuple(result.shape), tuple(result.stride()), result.dtype) != layout:
                self._unlike.add(number)
            made["slot", slot] = result
        return made

    def _at(self, slot: int, memory: Mapping[Item, Any]) -> torch.Tensor:
        root, offset = self._root(slot)
        whole: torch.Tensor = memory["slot", root]
        if root == slot:
            return whole
        made = self._tensor(slot, whole.data_ptr() + offset * self._plan.slots[slot].torch_dtype.itemsize)
        made.untyped_storage().owner = whole  # type: ignore[attr-defined]
        return made

    def _table_words(
        self, recorded: RecordedCall, slots: Sequence[int], others: Sequence[int], words: Words
    ) -> list[TableWord]:
        """The words of a recorded call with addresses in ``slots``, with what is found in the table for a call of its
        kind that works on ``others`` in their place."""
        found = []
        for slot, other in zip(slots, others, strict=True):
            entry, further = table_place(self._plan, other, self._keeps_arena)
            found += [
                TableWord(word.node, word.offset, entry, word.delta + further)
                for word in words["slot", slot]
                if word.node in recorded.nodes
            ]
        return found


def _why_not(
    recording: Recording,
    recorded: RecordedCall,
    slots: Sequence[int],
    words: Words,
    unclear: Mapping[Item, str],
) -> str:
    """Why what a call launches is not known; empty where it is."""
    if not recorded.nodes:
        return "it launches nothing"
    if reason := recording.why_not_launched(recorded.nodes):
        return reason
    for slot in sorted(slots):
        if ("slot", slot) in unclear:
            return unclear["slot", slot]
    here = {(word.node, word.offset) for key, found in words.items() for word in found if word.node in recorded.nodes}
    known = {(word.node, word.offset) for slot in slots for word in words["slot", slot]}
    if here - known:
        return "it is handed memory of other calls"
    return ""


def _why_unplaced(recording: Recording, nodes: range, places: Sequence[TableWord]) -> str:
    """Why it is not known where some nodes fill memory; empty where it is."""
    placed = {place.node for place in places}
    missing = [n for n in nodes if recording.nodes[n].kind == "clear" and n not in placed]
    return f"whose memory {recording.nodes[missing[0]].name} fills is not known" if missing else ""


def _filled(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """An argument with tensors in the place of slots."""
    if isinstance(value, SlotRef):
        return tensors[value.slot]
    if isinstance(value, list | tuple):
        return type(value)(_filled(item, tensors) for item in value)
    return value


def _are_known(offsets: Sequence[int | str]) -> bool:
    return all(isinstance(offset, int) for offset in offsets)
