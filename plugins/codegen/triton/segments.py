"""From the kernels of a draft plan to launch tables: parameters from slots and sizes, grids, scratch memory."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from turret.plan import SCRATCH_ALIGNMENT, Launch, Plan, SizeText
from turret.plan.builder import PlanDraft
from turret.plan.launch.table import (
    NUMBER,
    ArenaPointer,
    Clear,
    KernelLaunch,
    LaunchTable,
    Number,
    Parameter,
    SizeValue,
    SlotPointer,
    Words,
    expression,
    segment_words,
)
from turret.plugins.codegen.triton.compilation.compile import CompiledKernel, Launchable, Variant
from turret.plugins.codegen.triton.tiles.kernel import TritonKernel

MOST_SPANS = 4
"""Spans of scratch memory between two of the arena's."""

VECTOR = 16
"""Bytes of alignment that Triton's divisibility hint promises."""

Emitted = tuple[TritonKernel, ...]
"""The Triton kernels of one loop kernel, launched in order."""


def alternatives(segments: Mapping[str, Iterable[Emitted]]) -> Iterator[TritonKernel]:
    """All kernels that some segments may launch."""
    for kernel in _kernels(segments):
        yield from kernel.alternatives


def wanted(segments: Mapping[str, Iterable[Emitted]], hints: Mapping[str, int]) -> Iterator[TritonKernel]:
    """Those that they launch for sizes as their hints say, which are compiled at once."""
    for kernel in _kernels(segments):
        yield from kernel.wanted_for(hints)


def _kernels(segments: Mapping[str, Iterable[Emitted]]) -> Iterator[TritonKernel]:
    for groups in segments.values():
        yield from itertools.chain.from_iterable(groups)


def with_alignment(kernel: TritonKernel, draft: PlanDraft) -> TritonKernel:
    """The kernel with alignment hints for all pointers that the runtime keeps aligned.

    The allocator aligns what it hands out, and the arena's tensors start at cache lines; of other tensors each run
    makes sure (``native.device.Segment.recover``).  Views into the arena alone start anywhere for good, and rivals that
    cannot do with that are left out.
    """
    pointers = zip(kernel.parameters, kernel.buffers, strict=False)
    aligned = {parameter for parameter, buffer in pointers if not _starts_anywhere(buffer, draft)}
    sizes = kernel.divisible.difference(kernel.parameters[: len(kernel.buffers)])
    otherwise = None if kernel.otherwise is None else with_alignment(kernel.otherwise, draft)
    rivals = (with_alignment(rival, draft) for rival in kernel.rivals)
    able = tuple(rival for rival in rivals if rival.described <= rival.divisible)
    return attrs.evolve(kernel, divisible=sizes | aligned, otherwise=otherwise, rivals=able)


def _starts_anywhere(buffer: str, draft: PlanDraft) -> bool:
    slot = draft.slot_of.get(buffer)
    if slot is None:
        return False
    described = draft.plan.slots[slot]
    return described.storage == "arena" and described.number % VECTOR != 0


@attrs.frozen
class Packed:
    """A launch table, the bytes of scratch memory its segments work in (a size over the plan's symbols), and when the
    plan holds it and the arena (``Plan.arena_spans``)."""

    table: LaunchTable
    scratch_bytes: SizeText
    arena_spans: tuple[tuple[int, int], ...]


def pack(
    draft: PlanDraft,
    segments: dict[str, list[Emitted]],
    choose: Callable[[TritonKernel], tuple[Variant, Launchable]],
) -> Packed:
    """The launch table of a plan; ``choose`` says which configuration of a kernel is launched, with its binary if it
    has one by now."""
    packer = _Packer(draft, choose)
    words = {name: packer.segment(name, emitted) for name, emitted in segments.items()}
    stored = {name: packer.stored(emitted) for name, emitted in segments.items()}
    entries = (k.binary if isinstance(k, CompiledKernel) else k.lazy for k in packer.compiled.values())
    table = LaunchTable(tuple(entries), words, stored)
    working = {name for name, totals in packer.scratch.items() if any(total != 0 for total in totals)}
    most = _most(list(itertools.chain.from_iterable(packer.scratch.values())))
    return Packed(table, most, _spans(draft.plan, working))


class _Packer:
    def __init__(self, draft: PlanDraft, choose: Callable[[TritonKernel], tuple[Variant, Launchable]]) -> None:
        self.draft, self.choose = draft, choose
        self.compiled: dict[str, Launchable] = {}
        self.scratch: dict[str, list[SizeText]] = {}
        """Bytes that each group of a segment works in."""

    def segment(self, name: str, emitted: Iterable[Emitted]) -> Words:
        steps: list[KernelLaunch | Clear] = []
        totals = self.scratch[name] = []
        for group in emitted:
            layout = _ScratchLayout(self, self.draft.plan.scratch_offset)
            steps += self.group(group, layout)
            totals.append(layout.total)
        return segment_words(len(self.draft.plan.slots), tuple(steps))

    def stored(self, emitted: Iterable[Emitted]) -> tuple[int, ...]:
        """Slots that a segment writes."""
        names = {name for group in emitted for kernel in group for name in kernel.stored}
        return tuple(sorted(self.draft.slot_of[n] for n in names if n in self.draft.slot_of))

    def group(self, group: Emitted, layout: _ScratchLayout) -> list[KernelLaunch | Clear]:
        """Launches of the kernels emitted for one loop kernel, which share scratch memory."""
        steps: list[KernelLaunch | Clear] = []
        for kernel in group:
            for scratch in kernel.scratch:
                layout.place(scratch.name, f"({scratch.count}) * {scratch.itemsize}")
                if scratch.zeroed:
                    steps.append(Clear(layout.pointer(scratch.name), layout.bytes[scratch.name]))
            steps.append(self.launch(kernel, layout))
        return steps

    def launch(self, kernel: TritonKernel, layout: _ScratchLayout) -> KernelLaunch:
        (_, config), compiled = self.choose(kernel)
        self.compiled.setdefault(compiled.key, compiled)
        parameters: list[Parameter] = []
        aligned = []
        for name, buffer in zip(kernel.parameters, kernel.buffers, strict=False):
            pointer = self.pointer(buffer, layout)
            parameters.append(pointer)
            if name in kernel.divisible and isinstance(pointer, SlotPointer) and not self.allocated(pointer.slot):
                aligned.append(pointer.slot)
        for name, size in zip(kernel.parameters[len(kernel.buffers) :], kernel.sizes, strict=False):
            parameters.append(SizeValue(self.draft.size_slot[size], narrow=kernel.signature[name] == "i32"))
        parameters += map(Number, kernel.streams)
        constants = dict(config.constants)
        counts = (*kernel.grid, "1", "1", "1")[:3]
        x, y, z = (expression(count, self.draft.size_slot, constants) for count in counts)
        parameters += self.hidden(kernel, counts, constants, compiled, layout)
        return KernelLaunch(
            list(self.compiled).index(compiled.key),
            tuple(parameters),
            (x, y, z),
            tuple(aligned),
            tuple(expression(text, self.draft.size_slot, {}) for text in kernel.assumes),
            None if kernel.otherwise is None else self.launch(kernel.otherwise, layout),
        )

    def pointer(self, buffer: str, layout: _ScratchLayout) -> SlotPointer | ArenaPointer:
        if buffer in layout.offsets:
            return layout.pointer(buffer)
        slot = self.draft.slot_of[buffer]
        described = self.draft.plan.slots[slot]
        return ArenaPointer((NUMBER, described.number)) if described.storage == "arena" else SlotPointer(slot)

    def allocated(self, slot: int) -> bool:
        return self.draft.plan.slots[slot].storage == "own"

    def hidden(
        self,
        kernel: TritonKernel,
        counts: tuple[str, ...],
        constants: dict[str, int],
        compiled: Launchable,
        layout: _ScratchLayout,
    ) -> list[Parameter]:
        """Triton's own scratch pointers: memory for each program where the kernel asks for some, else null."""
        pointers: list[Parameter] = [Number(0)] * compiled.hidden_pointers
        if isinstance(compiled, CompiledKernel) and compiled.global_scratch and pointers:
            name = f"{kernel.name} global scratch {len(layout.offsets)}"
            programs = " * ".join(f"({_substituted(count, constants)})" for count in counts)
            layout.place(name, f"{programs} * {compiled.scratch_bytes((1, 1, 1))}")
            pointers[0] = layout.pointer(name)
        return pointers


class _ScratchLayout:
    """Scratch buffers of one group, one after another behind the arena."""

    def __init__(self, packer: _Packer, start: int) -> None:
        self.sizes = packer.draft.size_slot
        self.start = start
        self.total: SizeText = 0
        self.offsets: dict[str, Words] = {}
        self.bytes: dict[str, Words] = {}

    def place(self, name: str, count: str) -> None:
        """Put a buffer of ``count`` (source) bytes behind those placed before."""
        self.offsets[name] = expression(f"{self.start} + ({self.total})", self.sizes, {})
        self.bytes[name] = expression(count, self.sizes, {})
        text = f"({self.total}) + cdiv({count}, {SCRATCH_ALIGNMENT}) * {SCRATCH_ALIGNMENT}"
        self.total = _folded(text, self.sizes)

    def pointer(self, name: str) -> ArenaPointer:
        return ArenaPointer(self.offsets[name])


def _folded(text: str, sizes: dict[str, int]) -> SizeText:
    """An int where a size does not depend on symbols, else its source."""
    words = expression(text, sizes, {})
    return words[1] if len(words) == 2 and words[0] == NUMBER else text


def _spans(plan: Plan, working: set[str]) -> tuple[tuple[int, int], ...]:
    """The arena's spans in a plan, and of the segments between them that work in scratch memory.

    Many of those between the same two spans share one, so that the host does not take and return memory for each.
    """
    if plan.arena_bytes and not plan.arena_spans:
        return ()
    spans = list(plan.arena_spans)
    launches = [n for n, step in enumerate(plan.steps) if isinstance(step, Launch) and step.function in working]
    outside = [n for n in launches if not any(first <= n <= last for first, last in spans)]
    for _, gap in itertools.groupby(outside, key=lambda n: sum(last < n for _, last in plan.arena_spans)):
        numbers = list(gap)
        spans += [(n, n) for n in numbers] if len(numbers) <= MOST_SPANS else [(numbers[0], numbers[-1])]
    return tuple(sorted(spans))


def _most(totals: list[SizeText]) -> SizeText:
    """The largest of sizes: groups run one after another, so that each may use the memory of the one before."""
    distinct = list(dict.fromkeys(totals)) or [0]
    known = max([t for t in distinct if isinstance(t, int)], default=0)
    unknown = [t for t in distinct if not isinstance(t, int)]
    return f"max({', '.join([str(known), *unknown])})" if unknown else known


def _substituted(text: str, constants: dict[str, int]) -> str:
    """Source with constexprs replaced by their values."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Constant(constants[node.id]) if node.id in constants else node

    return ast.unparse(Replace().visit(ast.parse(text, mode="eval")))
