"""Sections for graph capture: which steps are recorded together, and an order in which there are few of them.

Steps are *recorded* or *not*; views and numbers that the host computes from others are neither, and go with whatever is
around them.  An order with the fewest changes between the two is found by running all of one kind that can run, then
all of the other.  Within what that leaves free, steps stay where they were: an order also decides how much memory is
alive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.graph.externs import op_name
from turret.graph.obstacles import NAMED, Obstacle, is_named, short_name, why_not_recorded
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.products import Target
from turret.ir import (
    CopyInto,
    Extern,
    Kernel,
    LoopProgram,
    Number,
    ScheduleSection,
    Step,
    StridedView,
    TensorDecl,
    bound_symbols,
    defined,
    mentioned_symbols,
    references,
    used,
)
from turret.ir.analysis.batch_symbols import batch_symbols
from turret.ir.expr import loads
from turret.plan.builder import float_symbols, kernel_symbols

_COPIES = frozenset((torch.ops.aten._to_copy.default, torch.ops.aten.copy.default, torch.ops.aten.to.device))

_SHOWN = 3
"""Symbols that a reason names."""


@attrs.frozen(eq=False)
class Cut:
    """How a program's steps are cut; ``kinds[i]``: whether piece ``i`` is recorded, None for one that is neither.

    ``batches(steps)``: symbols that count samples which some steps treat one by one, as far as anybody wants to know.
    """

    obstacle: Callable[[Step], Obstacle | None]
    kinds: Sequence[bool | None]
    batches: Callable[[Sequence[Step]], tuple[str, ...]] = lambda steps: ()

    def ordered(self, order: Sequence[int], followers: Sequence[Collection[int]]) -> tuple[int, ...]:
        """Pieces (given in a legal order) in an order with the fewest sections; as given, where that has no more."""
        return in_few_sections(order, followers, self.kinds)

    def sections(self, steps: Sequence[Step]) -> tuple[ScheduleSection, ...]:
        """Runs of steps of one kind; empty where all are recorded, and there is nothing to say of them."""
        found: list[tuple[int, dict[Obstacle, None]]] = []
        begin = 0
        for number, step in enumerate(steps):
            if not _is_neutral(step):
                obstacle = self.obstacle(step)
                if not found or bool(found[-1][1]) != (obstacle is not None):
                    found.append((begin if found else 0, {}))
                found[-1][1].update({} if obstacle is None else {obstacle: None})
                begin = number + 1
        ends = [*(first - 1 for first, _ in found[1:]), len(steps) - 1]
        sections = tuple(
            ScheduleSection(first, end, tuple(o), () if o else self.batches(steps[first : end + 1]))
            for (first, o), end in zip(found, ends, strict=False)
        )
        return sections if any(s.obstacles or s.batch_symbols for s in sections) else ()


def cut_for(
    context: CompileContext, program: LoopProgram, target: Target | None, pieces: Sequence[Sequence[Step]]
) -> Cut | None:
    """How to cut a program, given as the steps of each piece; None where none is recorded."""
    config = context.config
    if not config.cudagraphs or target is None or device_for(target.device_type).graphs is None:
        return None
    dynamic = any(source.kind != "float" for source in program.symbols.values())
    if config.cudagraph_skip_dynamic_graphs and dynamic:
        return None
    rules = _Rules(program, target, config.cudagraph_split_ops, config.cudagraph_collectives)
    kinds = [_kind(steps, rules.obstacle) for steps in pieces]
    if not dynamic or not config.cudagraph_capture_sizes:
        return Cut(rules.obstacle, kinds)
    sizes = [name for name, source in program.symbols.items() if source.kind == "size"]
    return Cut(rules.obstacle, kinds, lambda steps: batch_symbols(steps, rules.declarations, sizes))


def _kind(steps: Sequence[Step], obstacle: Callable[[Step], Obstacle | None]) -> bool | None:
    if all(map(_is_neutral, steps)):
        return None
    return all(obstacle(step) is None for step in steps)


def _is_neutral(step: Step) -> bool:
    return isinstance(step, StridedView | Number)


class _Rules:
    """What cannot be recorded of one program's steps on one device."""

    def __init__(
        self, program: LoopProgram, target: Target, split_ops: tuple[str, ...], collectives: bool = False
    ) -> None:
        self.declarations, self.split_ops, self.collectives = program.declarations(), split_ops, collectives
        self.device = torch.device(target.device)
        self.scalars = {n for n, value in program.constants.items() if not value.dim()}
        self.of_data = symbols_of_data(program)
        self.of_data_in_kernels = self.of_data.difference(
            float_symbols(program)
        )  # kernels are handed floats as they are then
        self._found: dict[Step, Obstacle | None] = {}

    def obstacle(self, step: Step) -> Obstacle | None:
        """Why a step is not recorded."""
        if isinstance(step, Extern):
            # Steps are as they were made; kernels are renamed when their order is known.
            if step not in self._found:
                self._found[step] = self._of_call(step)
            return self._found[step]
        if isinstance(step, Kernel):
            what, why = f"kernel {step.name}", self._elsewhere(_tensors(step)) or self._of_data_kernel(step)
            return Obstacle(what, why, step.sources[0] if step.sources else "") if why else None
        if isinstance(step, CopyInto):
            why = self._elsewhere(used(step))
            return Obstacle(f"the write to {step.target}", why) if why else None
        return None

    def _of_call(self, step: Extern) -> Obstacle | None:
        source = ": ".join(text for text in (step.location, step.source) if text)
        why = NAMED if self._is_named(step) else ""
        why = why or why_not_recorded(step.op, step.args, self._index_dtypes(step), self.collectives)
        why = why or self._of_devices(step) or self._of_data(step)
        if not why and not any(references(step.args)) and not step.outputs:
            why = "is work of the host"
        return Obstacle(short_name(step.op), why, source) if why else None

    def _is_named(self, step: Extern) -> bool:
        return step.reason == NAMED or is_named(self.split_ops, op_name(step.op))

    def _index_dtypes(self, step: Extern) -> list[torch.dtype]:
        lists = [a for a in step.args if isinstance(a, list | tuple)]
        return [self.declarations[ref.name].dtype for ref in references(lists)]

    def _of_devices(self, step: Extern) -> str:
        names = _tensors(step) - self.scalars
        devices = sorted({str(self.declarations[name].device) for name in names})
        if len(devices) > 1 and step.op in _COPIES:
            return f"copies between {' and '.join(devices)}"
        return self._elsewhere(names)

    def _elsewhere(self, names: Any) -> str:
        """Whether tensors lie on another device, as the rest of a sentence."""
        devices = {str(self.declarations[name].device) for name in names if not self._is_here(self.declarations[name])}
        return f"works on {', '.join(sorted(devices))}" if devices else ""

    def _is_here(self, decl: TensorDecl) -> bool:
        indices = {decl.device.index, self.device.index} - {None}
        return decl.device.type == self.device.type and len(indices) < 2

    def _of_data(self, step: Extern) -> str:
        return _depends(self.of_data & mentioned_symbols(step))

    def _of_data_kernel(self, kernel: Kernel) -> str:
        of_data = self.of_data_in_kernels
        return _depends(of_data.intersection(kernel_symbols(kernel, self.declarations)) if of_data else ())


def _depends(symbols: Collection[str]) -> str:
    shown = ", ".join(sorted(symbols)[:_SHOWN])
    return f"works with unbacked symbols ({shown})" if symbols else ""


def _tensors(step: Step) -> set[str]:
    """Names of all tensors that a step reads or makes."""
    if isinstance(step, Kernel):
        return {node.tensor for s in step.stores for node in loads(*s.roots)} | {s.tensor for s in step.stores}
    return {*used(step), *(decl.name for decl in defined(step))}


def symbols_of_data(program: LoopProgram) -> frozenset[str]:
    """Numbers that calls give, and those computed from them."""
    found: set[str] = set()
    for statement in program.statements:
        if isinstance(statement, Extern) or (isinstance(statement, Number) and mentioned_symbols(statement) & found):
            found.update(bound_symbols(statement))
    return frozenset(found)


def in_few_sections(
    order: Sequence[int], followers: Sequence[Collection[int]], kinds: Sequence[bool | None]
) -> tuple[int, ...]:
    """Pieces in an order with the fewest runs of one kind, as near to the given (legal) one as that allows."""
    plan = min((_earliest(order, followers, kinds, first) for first in (True, False)), key=lambda plan: plan.runs)
    given = [kinds[n] for n in order if kinds[n] is not None]
    if sum(a is not b for a, b in itertools.pairwise(given)) + 1 <= plan.runs:
        return tuple(order)
    runs = _near(order, followers, kinds, plan)
    place = {number: position for position, number in enumerate(order)}
    return tuple(sorted(order, key=lambda number: (runs[number], place[number])))


@attrs.frozen
class _Runs:
    """Runs of recorded pieces and of others in turn: how many, the kind of the first, and each piece's earliest."""

    runs: int
    first: bool
    earliest: Mapping[int, int]

    def is_kind(self, run: int, kind: bool | None) -> bool:
        return kind is None or (self.first == kind) == (run % 2 == 0)


def _earliest(
    order: Sequence[int], followers: Sequence[Collection[int]], kinds: Sequence[bool | None], first: bool
) -> _Runs:
    plan = _Runs(0, first, {})
    found = dict.fromkeys(order, 0)
    for number in order:
        found[number] += not plan.is_kind(found[number], kinds[number])
        for later in followers[number]:
            found[later] = max(found[later], found[number])
    return _Runs(1 + max((found[n] for n in order if kinds[n] is not None), default=0), first, found)


def _near(
    order: Sequence[int], followers: Sequence[Collection[int]], kinds: Sequence[bool | None], plan: _Runs
) -> dict[int, int]:
    """The run of each piece: of those that it may be in, the one in which the pieces around it are."""
    latest = dict.fromkeys(order, plan.runs - 1)
    for number in reversed(order):
        latest[number] = min([latest[number], *(latest[later] for later in followers[number])])
        latest[number] -= not plan.is_kind(latest[number], kinds[number])
    chosen = dict.fromkeys(order, 0)
    now = 0
    for number in order:
        if kinds[number] is not None:
            if plan.earliest[number] == latest[number]:
                now = max(now, latest[number])
            least = chosen[number] + (not plan.is_kind(chosen[number], kinds[number]))
            run = min(now, latest[number])
            chosen[number] = max(least, run - (not plan.is_kind(run, kinds[number])))
        for later in followers[number]:
            chosen[later] = max(chosen[later], chosen[number])
    for number in reversed(order):
        if kinds[number] is None:
            chosen[number] = min((chosen[later] for later in followers[number]), default=chosen[number])
    return chosen
