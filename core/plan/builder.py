"""From a schedule to a plan: numbered slots, allocations, and runs of kernels joined into segments.

A code generator calls ``draft_plan`` to learn which kernels it should join under which function names and where
their tensors are in the slot table, generates the library, and fills in ``library``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.graph.externs import op_name, out_variant
from turret.hooks.devices import device_for
from turret.ir.analysis.symbols import symbols_of_expr, symbols_of_index, symbols_of_sizes
from turret.ir.expr import loads
from turret.ir.program import (
    CopyInto,
    Extern,
    LoopProgram,
    Number,
    Ref,
    StridedView,
    Template,
    TensorDecl,
    bound_symbols,
    defined,
    used,
)
from turret.ir.schedule import SEPARATE_BYTES, Kernel, Schedule, ScheduleSection
from turret.plan import (
    Allocate,
    Call,
    Compute,
    Copy,
    Free,
    Launch,
    Plan,
    Section,
    SizeRef,
    Slot,
    SlotRef,
    Step,
    View,
    number_text,
    size_text,
)
from turret.plan.plan import SlotStorage


@attrs.frozen(eq=False)
class Segment:
    """Kernels that run one after another in one native call of the function ``name``.

    Calls among ``steps`` are those that the code generator writes itself, which asked for them.
    """

    name: str
    steps: tuple[Kernel | Template, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step for step in self.steps if isinstance(step, Kernel))


@attrs.frozen(eq=False)
class PlanDraft:
    """A plan that still lacks its library; ``slot_of`` maps tensor names to slots, ``size_slot`` symbols to the
    positions of the size table."""

    plan: Plan
    segments: tuple[Segment, ...]
    slot_of: dict[str, int]
    size_slot: dict[str, int]


def draft_plan(
    schedule: Schedule, device: str, writes: Callable[[Template], bool] = lambda template: False
) -> PlanDraft:
    """Lay out a schedule as a plan for one device; calls that ``writes`` is true of are kernels of the segments."""
    return _Drafter(schedule, device, writes).draft()


def kernel_tensors(kernel: Kernel | Template) -> tuple[str, ...]:
    """Names of the tensors a kernel reads or writes, each once, in a fixed order."""
    names: list[str] = []
    if isinstance(kernel, Template):
        return tuple(dict.fromkeys((*used(kernel), *(decl.name for decl in defined(kernel)))))
    for store in kernel.stores:
        names += [node.tensor for node in loads(*store.roots)]
        names.append(store.tensor)
    return tuple(dict.fromkeys(names))


class _Drafter:
    def __init__(self, schedule: Schedule, device: str, writes: Callable[[Template], bool]) -> None:
        self.schedule, self.device, self.writes = schedule, device, writes
        self.program = schedule.program
        self.declarations = self.program.declarations()
        self.slots: list[Slot] = []
        self.slot_of: dict[str, int] = {}
        self.views = {s.tensor.name: s for s in schedule.steps if isinstance(s, StridedView)}
        self.steps: list[Step] = []
        self.segments: list[Segment] = []
        self.pending: list[Kernel | Template] = []
        self.pending_steps = 0
        """Steps of the schedule that the launch under way covers: kernels, and views that are places in the arena."""
        self.pending_dead: list[str] = []
        self.pending_reports = False
        self.overwritten = schedule.memory.overwrites(self.program)
        self.read = _read(schedule)
        self.of_data: set[str] = set()
        """Numbers that calls give, and those computed from them."""
        self.step_ranges: list[tuple[int, int]] = []
        """Of each of the schedule's steps the first and the last of the plan's."""

    def draft(self) -> PlanDraft:
        program = self.program
        inputs = tuple(
            None if decl is None else self._slot(decl, "input", number) for number, decl in enumerate(program.inputs)
        )
        for name in program.constants:
            self._slot(self.declarations[name], "constant")
        spans = self.schedule.memory.arena_spans
        edges = {edge for first, last in spans for edge in (first, last + 1)}
        edges |= {section.first for section in self.schedule.sections}
        for number, step in enumerate(self.schedule.steps):
            if number in edges:
                self._flush()  # a launch runs with the arena or without it, and in one section
            self._add(step, self.schedule.memory.dead_after.get(number, ()))
        self._flush()
        bound = [symbol for statement in program.statements for symbol in bound_symbols(statement)]
        symbols = tuple(sorted([*program.symbols, *bound]))
        plan = Plan(
            name=program.name,
            device=self.device,
            slots=tuple(self.slots),
            inputs=inputs,
            steps=tuple(self.steps),
            outputs=tuple(self._value(output) for output in program.outputs),
            size_symbols=symbols,
            size_sources=dict(program.symbols),
            constants=dict(program.constants),
            arena_bytes=self.schedule.memory.arena_bytes,
            float_symbols=float_symbols(program),
            arena_spans=tuple((self.step_ranges[first][0], self.step_ranges[last][1]) for first, last in spans),
            sections=tuple(map(self._section, self.schedule.sections)),
        )
        return PlanDraft(plan, tuple(self.segments), self.slot_of, {s: i for i, s in enumerate(symbols)})

    def _add(self, step: Kernel | Extern | StridedView | CopyInto | Number, dead: tuple[str, ...]) -> None:
        """One more step of the schedule, after which some tensors are dead."""
        if isinstance(step, Kernel) or (isinstance(step, Template) and self.writes(step)):
            self._kernel(step, dead)
            self.pending_steps += 1
            return
        if isinstance(step, StridedView) and (step.tensor.name not in self.read or self._joins(step)):
            self.pending_dead += dead  # nothing to run: the launch under way goes on
            self.pending_steps += 1
            return
        self._flush()
        before = len(self.steps)
        self._step(step)
        self._free(dead)
        self.step_ranges.append((before, len(self.steps) - 1))

    def _kernel(self, kernel: Kernel | Template, dead: Sequence[str]) -> None:
        """One more kernel of the launch under way, or the first of another; ``dead`` are tensors that end with it."""
        if any(map(self._is_separate, self.pending_dead)) and self._allocates(kernel):
            self._flush()  # what died is freed before there is more
        if self.pending_reports and self._overwrites(kernel):
            self._flush()  # an error of theirs is one before the write
        self.pending.append(kernel)
        self.pending_reports |= isinstance(kernel, Kernel) and kernel.reports
        self.pending_dead += dead

    def _section(self, section: ScheduleSection) -> Section:
        """A section of the schedule as one of the plan."""
        steps = self.schedule.steps[section.first : section.last + 1]
        read = {s for step in steps if isinstance(step, Kernel) for s in kernel_symbols(step, self.declarations)}
        first, last = self.step_ranges[section.first][0], self.step_ranges[section.last][1]
        return Section(first, last, section.obstacles, tuple(sorted(read)), section.batch_symbols)

    def _slot(self, decl: TensorDecl, storage: SlotStorage, number: int = 0) -> int:
        slot = Slot(
            name=decl.name,
            shape=tuple(map(size_text, decl.shape)),
            stride=tuple(map(size_text, decl.stride)),
            dtype=str(decl.dtype).removeprefix("torch."),
            device=str(decl.device),
            storage=storage,
            number=number,
        )
        self.slot_of[decl.name] = len(self.slots)
        self.slots.append(slot)
        return self.slot_of[decl.name]

    def _memory(self, name: str, *, allocate: bool = True) -> int:
        """The slot of a tensor that a step is about to write, made on first use."""
        if name in self.slot_of:
            return self.slot_of[name]
        decl = self.declarations[name]
        buffer = self.schedule.memory.buffers.get(name)
        offset = self._arena_offset(name)
        if offset is not None:
            return self._slot(decl, "arena", offset)
        if buffer is not None and buffer.reuses is not None:
            base = self.slot_of[buffer.reuses]
            if name in self.overwritten:
                self.slot_of[name] = base
                return base
            slot = self._slot(decl, "view")
            self.steps.append(View(slot, base, 0))
            return slot
        slot = self._slot(decl, "own" if allocate else "call")
        if allocate:
            self.steps.append(Allocate(slot))
        return slot

    def _arena_offset(self, name: str) -> int | None:
        """Where in the arena a tensor lies, in bytes; None for one that does not, as all of other devices."""
        buffer = self.schedule.memory.buffers.get(name)
        same = torch.device(self.device).type == self.declarations[name].device.type
        return buffer.arena_offset if buffer is not None and same else None

    def _is_placed(self, name: str) -> bool:
        """Whether it is planned where a tensor lies: in the arena, or where another lay."""
        buffer = self.schedule.memory.buffers.get(name)
        return buffer is not None and (self._arena_offset(name) is not None or buffer.reuses is not None)

    def _is_separate(self, name: str) -> bool:
        """Whether a tensor has memory of its own that is worth freeing early."""
        buffer = self.schedule.memory.buffers.get(name)
        large = buffer is not None and buffer.bytes is not None and buffer.bytes >= SEPARATE_BYTES
        kept = device_for(self.declarations[name].device.type).keeps_arena
        return large and self._arena_offset(name) is None and not kept

    def _allocates(self, kernel: Kernel | Template) -> bool:
        buffers = self.schedule.memory.buffers
        made = set(_stored(kernel)) - self.slot_of.keys()
        return any(self._is_separate(name) and buffers[name].reuses is None for name in made)

    def _overwrites(self, kernel: Kernel | Template) -> list[str]:
        """What a kernel makes where an input lies."""
        return [name for name in _stored(kernel) if name in self.overwritten]

    def _flush(self) -> None:
        """End the run of kernels collected so far with one launch."""
        if not self.pending:
            self._end_steps(len(self.steps))
            return
        kernels, self.pending, self.pending_reports = tuple(self.pending), [], False
        before = len(self.steps)
        used: dict[int, None] = {}
        for kernel in kernels:
            for name in kernel_tensors(kernel):
                used[self._memory(name)] = None
        name = f"segment{len(self.segments)}"
        self.segments.append(Segment(name, kernels))
        overwrites = tuple(dict.fromkeys(self.slot_of[n] for kernel in kernels for n in self._overwrites(kernel)))
        sources = tuple(map(_source, kernels))
        self.steps.append(Launch(name, tuple(used), tuple(map(_name, kernels)), sources, overwrites))
        self._end_steps(before)

    def _end_steps(self, before: int) -> None:
        """Free what is dead since, and note that pending steps are the plan's from ``before`` on."""
        dead, self.pending_dead = self.pending_dead, []
        self._free(tuple(dead))
        self.step_ranges += [(before, len(self.steps) - 1)] * self.pending_steps
        self.pending_steps = 0

    def _free(self, names: tuple[str, ...]) -> None:
        """Drop tensors that own memory; arena tensors live as long as their workspace."""
        slots = [self.slot_of[n] for n in names if n in self.slot_of]
        slots = [s for s in slots if self.slots[s].storage in ("input", "own", "call", "view")]
        if slots:
            self.steps.append(Free(tuple(slots)))

    def _step(self, step: Extern | StridedView | CopyInto | Number) -> None:
        match step:
            case Number():
                self.steps.append(Compute(step.symbol, self._number(step)))
            case StridedView():
                self._view(step)
            case CopyInto():
                self.steps.append(Copy(self.slot_of[step.target], self.slot_of[step.source]))
            case Extern():
                self._extern(step)

    def _number(self, step: Number) -> str:
        """What computes a number.  From data of this graph it is as in Python, which raises for a division by zero."""
        if {str(symbol) for symbol in getattr(step.value, "free_symbols", ())}.isdisjoint(self.of_data):
            return number_text(step.value)
        self.of_data.add(step.symbol)
        return str(size_text(step.value))

    def _joins(self, step: StridedView) -> bool:
        """Give a view its place among the kernels under way; False where there are none, or it takes a step."""
        if not self.pending or not self._is_place(step):
            return False
        self._view(step)
        return True

    def _is_place(self, step: StridedView) -> bool:
        """Whether a view is no more than a place in the arena."""
        known = isinstance(step.offset, int) and step.tensor.is_static
        slot = self.slot_of.get(step.base)
        in_arena = self._arena_offset(step.base) is not None if slot is None else self.slots[slot].storage == "arena"
        return known and in_arena

    def _view(self, step: StridedView) -> None:
        base = self._memory(step.base)
        if self._is_place(step):
            assert isinstance(step.offset, int)
            self._slot(step.tensor, "arena", self.slots[base].number + step.offset * step.tensor.dtype.itemsize)
            return
        self.steps.append(View(self._slot(step.tensor, "view"), base, size_text(step.offset)))

    def _extern(self, step: Extern) -> None:
        args = tuple(self._value(a) for a in step.args)
        kwargs = {k: self._value(v) for k, v in step.kwargs.items()}
        variant = out_variant(step.op)
        first = step.outputs[0] if step.outputs else None
        if variant is not None and first is not None and self._is_placed(first.name):
            into = self._memory(first.name)
            self.steps.append(Call(op_name(variant), args, kwargs, into=into, origins=step.origins))
            return
        outputs = tuple(None if o is None else self._memory(o.name, allocate=False) for o in step.outputs)
        self.of_data.update(binding.symbol for binding in step.symbol_bindings)
        self.steps.append(
            Call(
                op_name(step.op),
                args,
                kwargs,
                outputs,
                sequence=step.returns_sequence,
                origins=step.origins,
                symbol_bindings=step.symbol_bindings,
            )
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return SlotRef(self._memory(value.name))
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(v) for v in value)
        if value is None or isinstance(value, (bool, int, float, str, complex)):
            return value
        if hasattr(value, "free_symbols"):
            return SizeRef(str(size_text(value)))
        return value


def _read(schedule: Schedule) -> set[str]:
    """Names of what steps, outputs and later buffers of a schedule take, bases of views where those are read."""
    found = {output.name for output in schedule.program.outputs if isinstance(output, Ref)}
    found |= {buffer.reuses for buffer in schedule.memory.buffers.values() if buffer.reuses is not None}
    for step in reversed(schedule.steps):
        if isinstance(step, Kernel):
            found.update(kernel_tensors(step))
        elif not isinstance(step, StridedView) or step.tensor.name in found:
            found.update(used(step))
    return found


def _stored(kernel: Kernel | Template) -> list[str]:
    """Names of the tensors that a kernel writes."""
    if isinstance(kernel, Template):
        return [decl.name for decl in defined(kernel)]
    return [store.tensor for store in kernel.stores]


def _name(kernel: Kernel | Template) -> str:
    return _stored(kernel)[0] if isinstance(kernel, Template) else kernel.name


def _source(kernel: Kernel | Template) -> str:
    """The user's lines that a kernel came from."""
    return kernel.source if isinstance(kernel, Template) else "\n".join(kernel.sources)


def float_symbols(program: LoopProgram) -> tuple[str, ...]:
    """Symbols whose values are floats: inputs, results of calls, or computed."""
    found = [name for name, source in program.symbols.items() if source.kind == "float"]
    for statement in program.statements:
        if isinstance(statement, Extern):
            found += [b.symbol for b in statement.symbol_bindings if b.is_float]
        elif isinstance(statement, Number) and statement.is_float:
            found.append(statement.symbol)
    return tuple(found)


def kernel_symbols(kernel: Kernel, declarations: dict[str, TensorDecl]) -> tuple[str, ...]:
    """Names of the size symbols that a kernel's loops, indices, values and tensors' layouts mention, sorted."""
    found = set(symbols_of_sizes(variable.extent for variable in (*kernel.outer, *kernel.inner)))
    for name in kernel_tensors(kernel):
        found |= symbols_of_sizes((*declarations[name].shape, *declarations[name].stride))
    for store in kernel.stores:
        found = found.union(*map(symbols_of_index, store.coords), *map(symbols_of_expr, store.roots))
    return tuple(sorted(found))
