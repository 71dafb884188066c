"""A plan whose library calls are launched by themselves: one native call for each run of them and of kernels.

A call of a library costs the host 16 to 20 us on the way to its launch (``torch.addmm`` of bfloat16 on an H200's host),
which takes 4 to 5 us by itself (``tests/benchmarks/direct_calls.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import attrs
import torch

from turret.hooks.devices import Allocator, Segment
from turret.hooks.graph_capture import KnownCall
from turret.plan import Allocate, Call, Free, Launch, Plan, SlotRef, View
from turret.plan.executor import LoadedPlan, PlanWriter, refs, slots_as_tensors
from turret.plan.plan import Step
from turret.plan.sections import touched_slots
from turret.plan.workspaces import device_table_lengths
from turret.storage.artifact_cache import Store


class OwnMemory(threading.local):
    """Memory that launched calls work in beside that of the plan: a block for each stream of each thread.

    The calls of one thread on one stream follow one another, so that all of them can work in the same.
    """

    def __init__(self, empty: Allocator) -> None:
        self._empty = empty
        self._blocks: dict[int, torch.Tensor] = {}

    def address(self, nbytes: int, stream: int) -> int:
        """Where at least so many bytes are for the calling thread, whose current stream it is."""
        block = self._blocks.get(stream)
        if block is None or block.numel() < nbytes:
            block = self._blocks[stream] = self._empty((nbytes,), (1,), torch.uint8)
        return block.data_ptr()


def load_direct(
    plan: Plan, calls: Mapping[int, KnownCall], store: Store | None, own: Callable[[int], int] | None = None
) -> LoadedPlan:
    """The executable of a plan, as ``turret.plan.executor.load`` gives it, with the launches of some of its calls.

    ``calls``: by the numbers of their steps, which write to memory they are given, with addresses of a table as
    ``table_place`` says.  ``own(stream)`` gives where they have memory beside that of the plan, if some need it; that
    address is in the entry ``own_entry``.
    """
    return _DirectWriter(plan, store, calls, own).build()


def own_entry(plan: Plan, keeps_arena: bool) -> int:
    """The entry of the table of slots behind all those of a plan."""
    return plan.table_slots if keeps_arena else device_table_lengths(plan)[0]


def with_memory_given(
    plan: Plan, given: Mapping[int, Call], known: Mapping[int, KnownCall]
) -> tuple[Plan, dict[int, KnownCall]]:
    """A plan which makes the memory of what the calls of ``known`` give, and their steps in it; they are those of
    ``given``."""
    steps: list[Step] = []
    slots, calls = list(plan.slots), dict[int, KnownCall]()
    begins, ends = [], []
    for number, step in enumerate(plan.steps):
        begins.append(len(steps))
        if number in known:
            assert isinstance(step, Call)
            for slot in made_slots(step) if step.into is None else ():
                slots[slot] = attrs.evolve(slots[slot], storage="own")
                steps.append(Allocate(slot))
            calls[len(steps)] = known[number]
            step = given[number]
        ends.append(len(steps))
        steps.append(step)
    spans = tuple((begins[first], ends[last]) for first, last in plan.arena_spans)
    return attrs.evolve(plan, slots=tuple(slots), steps=tuple(steps), arena_spans=spans), calls


Places = dict[int, tuple[int, tuple[int | str, ...]]]
"""For each view the slot whose memory it lies in, and the offsets (in elements) on the way there."""


def roots(plan: Plan) -> Places:
    """Where the views of a plan lie."""
    found: Places = {}
    for step in plan.steps:
        if isinstance(step, View):
            root, offsets = found.get(step.base, (step.base, ()))
            found[step.slot] = root, (*offsets, step.offset)
    return found


def table_place(plan: Plan, slot: int, keeps_arena: bool) -> tuple[int, int]:
    """Where the address of a slot that is no view is found: an entry of the table of slots, and bytes to add."""
    found = plan.slots[slot]
    in_one_block = found.storage == "arena" and not keeps_arena
    return (plan.table_slots, found.number) if in_one_block else (slot, 0)


def given_slots(call: Call) -> list[int]:
    """The slots of tensors among the arguments of a call."""
    return [ref.slot for ref in refs((call.args, list(call.kwargs.values())))]


def made_slots(call: Call) -> list[int]:
    """The slots that a call writes to or makes."""
    made = [slot for slot in call.outputs if slot is not None]
    return made if call.into is None else [*made, call.into]


class _DirectWriter(PlanWriter):
    """Collects launches until a step comes that has to wait for them; steps that only make tensors do not."""

    is_entry = False
    further_entries = 1

    def __init__(
        self, plan: Plan, store: Store | None, calls: Mapping[int, KnownCall], own: Callable[[int], int] | None
    ) -> None:
        self.calls, self._own = calls, own
        self._roots = {slot: root for slot, (root, _) in roots(plan).items()}
        self._unneeded = _unneeded_views(plan, calls)
        self._parts: list[Segment | KnownCall] = []
        self._slots: set[int] = set()
        self._aligned: set[int] = set()
        self._stored: set[int] = set()
        self._freed: list[tuple[int, Free]] = []
        super().__init__(plan, store, None)
        self.linear = {number: view for number, view in self.linear.items() if number not in calls}

    def dispatched(self) -> list[Step]:
        known = {id(self.plan.steps[number]) for number in self.calls} | {id(view) for view in self._unneeded}
        return [step for step in super().dispatched() if id(step) not in known]

    def addressed(self) -> frozenset[int]:
        return super().addressed().union(*(self._slots_of(number) for number in self.calls))

    def _slots_of(self, number: int) -> set[int]:
        return self._roots_of(touched_slots(self.plan.steps[number]))

    def _roots_of(self, slots: Iterable[int]) -> set[int]:
        return {self._roots.get(slot, slot) for slot in slots}

    def write(self, number: int, step: Step) -> None:
        if isinstance(step, Launch):
            assert self.native is not None  # the library of a plan with launches is loaded
            self._parts.append(self.native.segment(step))
            self._slots.update(step.slots)
            self._stored.update(step.overwrites)
        elif number in self.calls:
            assert isinstance(step, Call)
            self._parts.append(self.calls[number])
            used = self._slots_of(number)
            self._slots |= used
            self._aligned |= {slot for slot in used if self.plan.slots[slot].storage != "arena"}
            self._stored |= self._roots_of(made_slots(step))
        elif isinstance(step, Free) and self._parts:
            self._freed.append((number, step))
        elif not (isinstance(step, View) and step in self._unneeded):
            if not isinstance(step, View) and (self._freed or not isinstance(step, Allocate)):
                self.finish()
            super().write(number, step)

    def open_workspace(self) -> None:
        self.finish()
        super().open_workspace()

    def close_workspace(self) -> None:
        self.finish()
        super().close_workspace()

    def finish(self) -> None:
        """Launch what was collected."""
        if self._parts:
            overwritten = {s for s in self._stored if self.plan.slots[s].storage == "input"}
            if overwritten:
                self.lines.append("overwrites = True")
            self.run_segment(self._sequence(), sorted(self._slots))
        for number, step in self._freed:
            super().write(number, step)
        self._parts, self._freed = [], []
        self._slots, self._aligned, self._stored = set(), set(), set()

    def prepare_launches(self) -> None:
        super().prepare_launches()
        if self._own is not None:
            own = self.constant("own", self._own)
            self.lines.append(f"slots[{own_entry(self.plan, self.device.keeps_arena)}] = {own}(stream)")

    def _sequence(self) -> Segment:
        if len(self._parts) == 1 and isinstance(self._parts[0], Segment):
            return self._parts[0]
        assert self.device.graphs is not None  # calls are known by recording them
        entries = own_entry(self.plan, self.device.keeps_arena) + self.further_entries
        return self.device.graphs.sequence(
            self.index, self._parts, entries, sorted(self._aligned), sorted(self._stored)
        )


def _unneeded_views(plan: Plan, calls: Mapping[int, KnownCall]) -> tuple[View, ...]:
    """Views that nothing but launched calls works on: where those begin is known without a tensor."""
    needed = {output.slot for output in plan.outputs if isinstance(output, SlotRef)}
    for number, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            needed.update(step.slots)
        elif number not in calls and not isinstance(step, View):
            needed.update(slots_as_tensors(step))
    unneeded = []
    for step in reversed(plan.steps):
        if isinstance(step, View):
            if step.slot in needed:
                needed.add(step.base)
            else:
                unneeded.append(step)
    return tuple(unneeded)
