"""The check of a schedule's memory plan: no step writes over a value that a later step reads."""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from turret.errors import VerificationError
from turret.graph.externs import may_return_alias
from turret.ir.expr import loads
from turret.ir.program import CopyInto, Extern, Ref, StridedView, TensorDecl, defined, used
from turret.ir.schedule import BufferPlan, Kernel, Schedule, Step


def check_memory(schedule: Schedule) -> None:
    """Raise ``VerificationError`` where buffers that are alive at once overlap, or one is freed too early.

    Lifetimes are found here anew, from the steps alone.  A buffer that ``reuses`` another may begin in the step
    that reads the other for the last time, and only if it is a kernel.
    """
    born, dies = _lifetimes(schedule)
    buffers = schedule.memory.buffers
    declarations = schedule.program.declarations() if schedule.program.overwritten else {}
    heirs = Counter(buffer.reuses for buffer in buffers.values())
    for name, buffer in buffers.items():
        if name in born and buffer.reuses is not None and buffer.reuses == schedule.program.overwritten.get(name):
            _check_overwritten(schedule, declarations[name], declarations[buffer.reuses], born, dies)
        elif buffer.reuses is not None:
            _check_heir(schedule, name, buffer, born, dies)
            if heirs[buffer.reuses] > 1:
                all_of_them = sorted(n for n, b in buffers.items() if b.reuses == buffer.reuses)
                _fail(schedule, f"{', '.join(all_of_them)} all reuse {buffer.reuses}")
        if buffer.arena_offset is not None:
            _check_in_arena(schedule, name, buffer.arena_offset, buffer.bytes)
            _check_life(schedule, name, born, dies)
    _check_outputs(schedule)
    _check_sections(schedule, born, dies)
    _check_overlaps(schedule, born, dies)
    for number, names in schedule.memory.dead_after.items():
        for name in names:
            if dies.get(name, number) > number:
                _fail(schedule, f"{name} is freed after step {number}, but step {dies[name]} uses it")


def _check_in_arena(schedule: Schedule, name: str, offset: int, size: int | None) -> None:
    """A buffer ends before the arena does."""
    if size is None or offset + size > schedule.memory.arena_bytes:
        _fail(schedule, f"{name} ends beyond the arena of {schedule.memory.arena_bytes} bytes")


def _check_outputs(schedule: Schedule) -> None:
    """No output lies in the arena."""
    outputs = {output.name for output in schedule.program.outputs if isinstance(output, Ref)}
    for name, buffer in schedule.memory.buffers.items():
        if name in outputs and buffer.arena_offset is not None:
            _fail(schedule, f"the output {name} lies in the arena, which the next call writes over")


def _check_life(schedule: Schedule, name: str, born: dict[str, int], dies: dict[str, int]) -> None:
    """A buffer in the arena lives while the arena is there."""
    spans = schedule.memory.arena_spans
    if spans and name in born and not any(a <= born[name] and dies[name] <= b for a, b in spans):
        _fail(schedule, f"{name} (steps {born[name]} to {dies[name]}) outlives the arena, there in {spans}")


def _check_sections(schedule: Schedule, born: dict[str, int], dies: dict[str, int]) -> None:
    """Nothing in the arena, and no memory that is taken over, lives across a border of sections."""
    for name, buffer in schedule.memory.buffers.items():
        taken_over = buffer.reuses is not None and buffer.reuses != schedule.program.overwritten.get(name)
        kept = buffer.arena_offset is not None or taken_over
        begin = born.get(buffer.reuses or name, born.get(name, 0))
        for section in schedule.sections:
            if kept and begin < section.first <= dies.get(name, begin):
                span = f"steps {begin} to {dies[name]}"
                _fail(schedule, f"{name} ({span}) lives across the border of sections at step {section.first}")


def _check_overlaps(schedule: Schedule, born: dict[str, int], dies: dict[str, int]) -> None:
    inside = sorted(
        (b.arena_offset, b.arena_offset + b.bytes, name)
        for name, b in schedule.memory.buffers.items()
        if b.arena_offset is not None and b.bytes and name in born
    )
    for position, (_, end, name) in enumerate(inside):
        for start, _, other in inside[position + 1 :]:
            if start >= end:
                break
            first, second = (name, other) if born[name] <= born[other] else (other, name)
            handed_on = schedule.memory.buffers[second].reuses == first and born[first] < born[second]
            if dies[first] > born[second] or (dies[first] == born[second] and not handed_on):
                _fail(schedule, f"{first} (steps {born[first]} to {dies[first]}) and {second} (from step "
                                f"{born[second]}) overlap in the arena")  # fmt: skip


def _check_heir(schedule: Schedule, name: str, buffer: BufferPlan, born: dict[str, int], dies: dict[str, int]) -> None:
    reused = buffer.reuses
    assert reused is not None
    earlier = schedule.memory.buffers.get(reused)
    if earlier is None or name not in born:
        _fail(schedule, f"{name} reuses {buffer.reuses}, which the program does not make")
    if earlier.bytes != buffer.bytes or earlier.arena_offset != buffer.arena_offset:
        _fail(schedule, f"{name} reuses {buffer.reuses}, but lies elsewhere or has another size")
    if dies[reused] > born[name] or not isinstance(schedule.steps[born[name]], Kernel):
        _fail(schedule, f"{name} reuses {reused}, which step {dies[reused]} still reads")


def _check_overwritten(
    schedule: Schedule, output: TensorDecl, target: TensorDecl, born: dict[str, int], dies: dict[str, int]
) -> None:
    """An output that is made where an input lies, whose old elements nothing wants any more."""
    name, over = output.name, target.name
    if dies.get(over, -1) > born[name]:
        _fail(schedule, f"{name} is made over the input {over}, which step {dies[over]} still reads")
    if (output.shape, output.stride, output.dtype) != (target.shape, target.stride, target.dtype):
        _fail(schedule, f"{name} is made over the input {over}, which has another layout")


def _lifetimes(schedule: Schedule) -> tuple[dict[str, int], dict[str, int]]:
    """The step that makes each tensor, and the last that touches its memory, by its name or a view's."""
    born: dict[str, int] = {}
    dies: dict[str, int] = {}
    memory: dict[str, frozenset[str]] = {}
    for number, step in enumerate(schedule.steps):
        reads, makes = _touched(step)
        for name in makes:
            born.setdefault(name, number)
            memory.setdefault(name, frozenset((name,)))
        if isinstance(step, StridedView) or (isinstance(step, Extern) and may_return_alias(step.op)):
            shared = frozenset().union(*(memory.get(name, frozenset((name,))) for name in reads), frozenset())
            memory.update((name, memory[name] | shared) for name in makes)
        for name in reads | makes:
            for member in memory.get(name, (name,)):
                dies[member] = number
    for output in schedule.program.outputs:
        if isinstance(output, Ref):
            for member in memory.get(output.name, (output.name,)):
                dies[member] = len(schedule.steps)
    return born, dies


def _touched(step: Step) -> tuple[set[str], set[str]]:
    if not isinstance(step, Kernel):
        return set(used(step)), set() if isinstance(step, CopyInto) else {d.name for d in defined(step)}
    return {node.tensor for store in step.stores for node in loads(*store.roots)}, {
        store.tensor for store in step.stores
    }


def _fail(schedule: Schedule, message: str) -> NoReturn:
    raise VerificationError(f"{message}\n  in the memory plan of {schedule.program.name}")
