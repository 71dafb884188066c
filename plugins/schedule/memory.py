"""The memory plan: how long tensors live, which take over another's memory, and where in the arena they lie."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence

import attrs

from turret.graph.externs import out_variant
from turret.hooks.devices import device_for
from turret.ir import (
    BufferPlan,
    Extern,
    Kernel,
    LoopProgram,
    MemoryPlan,
    Ref,
    ScheduleSection,
    Step,
    StridedView,
    TensorDecl,
    defined,
    used,
)
from turret.ir.expr import loads
from turret.ir.schedule import SEPARATE_BYTES
from turret.plugins.schedule.in_place import can_reuse_buffer, may_stop

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load of today's CPUs."""

SMALLER_SEPARATE_BYTES, WORTH_ALLOCATING = (1 << 17, 1 << 15), 1 << 17
"""Bytes.  The arena is there for the whole call, at the moment of the peak, too, where little of it may be in use.
Where it costs that much, smaller tensors get memory of their own, at about a microsecond of the host's time each."""

MOST_SPANS = 4
"""How often a call takes the arena at most: taking and returning it costs about a microsecond of the host's time."""

LEAST_VIEW = 1 << 14
"""Bytes; taking over the result of a library call needs a view of it in each call, which costs about a microsecond."""


def storage_bytes(decl: TensorDecl) -> int | None:
    """Bytes from a tensor's first element to the end of its last; None where its layout is symbolic."""
    if not decl.is_static:
        return None
    return 0 if 0 in decl.shape else (decl.last_offset + 1) * decl.dtype.itemsize


def reads_and_writes(step: Step) -> tuple[set[str], set[str]]:
    """Names of tensors that a step reads, and that it makes."""
    if isinstance(step, Kernel):
        return {node.tensor for s in step.stores for node in loads(*s.roots)}, {s.tensor for s in step.stores}
    return set(used(step)), {d.name for d in defined(step)}


@attrs.define(eq=False)
class _Planner:
    """Lifetimes as step numbers: ``born`` where a tensor is made, ``dies`` where its memory is last touched.

    ``borders``: steps at which a section begins, across which nothing in an arena lives and nothing is taken over.
    ``targets``: outputs that may lie where an input does, with the input; ``found``: those that do.
    """

    program: LoopProgram
    steps: Sequence[Step]
    roots: Mapping[str, frozenset[str]]
    declarations: dict[str, TensorDecl]
    borders: Sequence[int] = ()
    targets: Mapping[str, str] = attrs.field(factory=dict)
    found: Mapping[str, str] = attrs.field(factory=dict)
    born: dict[str, int] = attrs.field(factory=dict)
    dies: dict[str, int] = attrs.field(factory=dict)
    reuses: dict[str, str] = attrs.field(factory=dict)

    def plan(self) -> MemoryPlan:
        self._lifetimes()
        self._overwrite()
        outputs = {r.name for r in self.program.outputs if isinstance(r, Ref)}
        escaping = frozenset().union(outputs, *(self.roots.get(name, frozenset()) for name in outputs))
        views = {s.tensor.name for s in self.steps if isinstance(s, StridedView)}
        inside = frozenset(n for n in self.born if not self._crosses(n)) - escaping
        planned = {n: size for n, size in self._candidates().items() if n in inside}
        self._take_over(planned, inside - views)
        kept = escaping | frozenset(self.program.constants)
        kept |= {target for name, target in self.reuses.items() if target == self.program.overwritten.get(name)}
        best = self._laid_out(planned, kept, views, SEPARATE_BYTES)
        by_the_call = not all(map(self._is_kept, planned))
        for least in SMALLER_SEPARATE_BYTES if by_the_call else ():
            other = self._laid_out(planned, kept, views, least)
            if (best.peak_bytes or 0) - (other.peak_bytes or 0) >= WORTH_ALLOCATING:
                best = other
        return best

    def _laid_out(self, planned: Mapping[str, int], kept: frozenset[str], views: set[str], least: int) -> MemoryPlan:
        """The plan where tensors of ``least`` bytes and more have memory of their own, unless arenas are kept."""
        offsets, arena = self._place({n: size for n, size in planned.items() if size < least or self._is_kept(n)})
        buffers = {name: self._buffer(name, offsets.get(name)) for name in self.born}
        dead: dict[int, list[str]] = {}
        for name, number in self.dies.items():
            if name not in kept and name not in offsets:
                dead.setdefault(number, []).append(name)
        outside = self._outside([b for n, b in buffers.items() if n not in views], kept)
        held = [arena > 0] * len(self.steps)
        if not all(map(self._is_kept, offsets)):
            held = self._held(outside, offsets, arena)
        peak = max((live + arena * there for live, there in zip(outside, held, strict=True)), default=0)
        spans = () if all(held) else _runs(held)
        return MemoryPlan(buffers, arena, peak, {n: tuple(sorted(names)) for n, names in dead.items()}, spans)

    def _is_kept(self, name: str) -> bool:
        """Whether the arena that a tensor may lie in stays from call to call."""
        return device_for(self.declarations[name].device.type).keeps_arena

    def _lifetimes(self) -> None:
        for number, step in enumerate(self.steps):
            reads, writes = reads_and_writes(step)
            for name in sorted(writes):
                self.born.setdefault(name, number)
            for name in reads | writes:
                for member in self.roots.get(name, (name,)):
                    self.dies[member] = number

    def _crosses(self, name: str) -> bool:
        """Whether a tensor's memory is touched in another section than the one that makes it."""
        born, dies = self.born[name], self.dies.get(name, self.born[name])
        return bisect.bisect_right(self.borders, born) != bisect.bisect_right(self.borders, dies)

    def _candidates(self) -> dict[str, int]:
        """Tensors that may lie in the arena, with their bytes: made by kernels, or by calls that take ``out``."""
        found: dict[str, int] = {}
        for step in self.steps:
            if isinstance(step, Kernel):
                names = [s.tensor for s in step.stores]
            elif isinstance(step, Extern) and out_variant(step.op) is not None and step.outputs[0] is not None:
                names = [step.outputs[0].name]
            else:
                continue
            for name in names:
                size = storage_bytes(self.declarations[name])
                if size is not None:
                    found[name] = size
        return found

    def _overwrite(self) -> None:
        """Find outputs that may be made in the memory of the input which takes their elements afterwards."""
        self.reuses |= self.found
        if not self.targets:
            return
        last_stop = max((n for n, step in enumerate(self.steps) if may_stop(step, self.declarations)), default=-1)
        for name, target in self.targets.items():
            if name in self.reuses or name not in self.born:
                continue
            number, last = self.born[name], self.dies.get(target, -1)
            step, output, input_ = self.steps[number], self.declarations[name], self.declarations[target]
            if not isinstance(step, Kernel) or storage_bytes(output) is None or last > number or last_stop >= number:
                continue
            aliases = [r for r in reads_and_writes(step)[0] - {target} if target in self.roots.get(r, ())]
            if last < number or (not aliases and can_reuse_buffer(step, output, input_)):
                self.reuses[name] = target

    def _take_over(self, planned: Mapping[str, int], inside: frozenset[str]) -> None:
        """Find stores that may go to the memory of a tensor which their kernel is the last to read."""
        taken: set[str] = set()
        for number, step in enumerate(self.steps):
            if not isinstance(step, Kernel):
                continue
            reads, writes = reads_and_writes(step)
            shared = frozenset().union(*(self.roots.get(n, frozenset()) - {n} for n in reads), frozenset())
            donors = [
                n for n in sorted(reads - writes - shared) if n in inside and n not in taken and self._dies(n) == number
            ]
            for store in step.stores:
                if store.tensor not in planned or self.born[store.tensor] != number or store.tensor in self.reuses:
                    continue
                for input_ in donors:
                    if input_ not in taken and self._fits(step, store.tensor, input_, planned):
                        taken.add(input_)
                        self.reuses[store.tensor] = input_
                        break

    def _dies(self, name: str) -> int:
        """The last step that touches a tensor's memory; -1 where another tensor may own it."""
        return self.dies[name] if self.roots.get(name, frozenset((name,))) == {name} else -1

    def _fits(self, kernel: Kernel, output: str, input_: str, planned: Mapping[str, int]) -> bool:
        size = planned[output]
        if size != storage_bytes(self.declarations[input_]) or (
            self._owner(input_) not in planned and size < LEAST_VIEW
        ):
            return False
        return can_reuse_buffer(kernel, self.declarations[output], self.declarations[input_])

    def _owner(self, name: str) -> str:
        """The first tensor in the memory that a tensor took over."""
        while name in self.reuses:
            name = self.reuses[name]
        return name

    def _place(self, planned: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """Offsets by first fit, largest first, among memory that is alive at the same time; and the arena's bytes."""
        blocks: dict[str, tuple[int, int]] = {}
        for name in planned:
            owner = self._owner(name)
            if owner in planned:
                born, dies = blocks.get(owner, (self.born[owner], -1))
                blocks[owner] = min(born, self.born[name]), max(dies, self.dies.get(name, self.born[name]))
        placed: list[tuple[int, int, int, int]] = []
        offsets: dict[str, int] = {}
        arena = 0
        for name in sorted(blocks, key=lambda n: (-planned[n], blocks[n], n)):
            size = -(-max(1, planned[name]) // ALIGNMENT) * ALIGNMENT
            first, last = blocks[name]
            offset = 0
            for start, end, low, high in sorted(placed):
                if high < first or last < low:
                    continue
                if start - offset >= size:
                    break
                offset = max(offset, end)
            placed.append((offset, offset + size, first, last))
            offsets[name] = offset
            arena = max(arena, offset + size)
        return {n: offsets[self._owner(n)] for n in planned if self._owner(n) in offsets}, arena

    def _buffer(self, name: str, offset: int | None) -> BufferPlan:
        decl = self.declarations[name]
        return BufferPlan(decl, storage_bytes(decl), offset, self.reuses.get(name))

    def _held(self, outside: Sequence[int], offsets: Mapping[str, int], arena: int) -> list[bool]:
        """In which steps the arena is there: all but those around a peak of memory at which it lies idle."""
        used = self._used(offsets)
        held = [True] * len(self.steps)
        while True:
            live = [size + arena * there for size, there in zip(outside, held, strict=True)]
            most = max(live)
            peaks = [number for number, size in enumerate(live) if size == most]
            if any(used[number] or not held[number] for number in peaks):
                return held
            idle = [run for run in _runs([not u for u in used]) if any(run[0] <= n <= run[1] for n in peaks)]
            fewer = [
                there and not any(first <= number <= last for first, last in idle) for number, there in enumerate(held)
            ]
            if len(_runs(fewer)) > MOST_SPANS:
                return held
            held = fewer

    def _used(self, names: Iterable[str]) -> list[bool]:
        """In which steps one of the tensors is alive."""
        used = [False] * len(self.steps)
        for name in names:
            for number in range(self.born[name], self.dies.get(name, self.born[name]) + 1):
                used[number] = True
        return used

    def _outside(self, buffers: Sequence[BufferPlan], escaping: frozenset[str]) -> list[int]:
        """Bytes alive outside the arena in each step, of tensors that the program makes; symbolic sizes left out."""
        change = [0] * (len(self.steps) + 1)
        for buffer in buffers:
            name = buffer.tensor.name
            if buffer.arena_offset is None and buffer.reuses is None:
                size = buffer.bytes or 0
                change[self.born[name]] += size
                if name not in escaping:
                    change[self._memory_dies(name) + 1] -= size
        return list(itertools.accumulate(change[:-1]))

    def _memory_dies(self, owner: str) -> int:
        reuses = [n for n in self.reuses if self._owner(n) == owner]
        return max(self.dies[n] for n in (owner, *reuses))


def _runs(flags: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """First and last positions of the runs of true flags."""
    runs = itertools.groupby(range(len(flags)), key=lambda number: flags[number])
    positions = [list(run) for flag, run in runs if flag]
    return tuple((run[0], run[-1]) for run in positions)


def plan_memory(
    program: LoopProgram,
    steps: Sequence[Step],
    roots: Mapping[str, frozenset[str]],
    sections: Sequence[ScheduleSection] = (),
    targets: Mapping[str, str] | None = None,
    found: Mapping[str, str] | None = None,
) -> MemoryPlan:
    """Place what the steps make: an arena for values that die inside the call, own memory for the rest.

    Where steps are cut into sections, the arena is for values that die inside their section.  ``targets`` are the
    inputs in whose memory outputs may be made once those are dead (``in_place.overwritable``), ``found`` those of which
    it is known that they are.
    """
    borders = tuple(section.first for section in sections)
    return _Planner(program, steps, roots, program.declarations(), borders, targets or {}, found or {}).plan()
