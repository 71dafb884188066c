"""A compiled plan as work that can be recorded: its size key, and a variant that writes to outputs it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.graph.externs import recorded_variant, resolve_op, unset_results
from turret.hooks.devices import ByteCopier
from turret.hooks.products import BoxedCallable, Role
from turret.plan import Allocate, Call, Compute, Copy, Free, Plan, SizeRef, SlotRef, View
from turret.plan.direct import roots as roots_of
from turret.plan.executor import LoadedPlan
from turret.plan.modes import below_autograd
from turret.plan.sizes import Sizes, compile_size, source_reader
from turret.plugins.cudagraphs.plans.generator_states import GeneratorStates
from turret.plugins.cudagraphs.plans.launches import PlanLaunches, why_one_size
from turret.plugins.cudagraphs.plans.padding import Batches
from turret.plugins.cudagraphs.recording.recorder import NotRecordable
from turret.plugins.cudagraphs.work import Key, Layout, Result, Shapes, Work


class PlanWork(Work):
    """A plan, which ``load`` makes a function of that is run to be recorded and for nothing else.

    ``own_memory``: the device keeps arenas from call to call.  ``reserves_nothing``: it is to be recorded as calls of
    any sizes are, even where it has one size: the recording then works in memory that each replay takes anew.
    ``byte_copier`` gives what its device copies bytes by.
    """

    def __init__(
        self,
        plan: Plan,
        load: Callable[[Plan], LoadedPlan],
        role: Role,
        *,
        static: frozenset[int],
        written: frozenset[int],
        own_memory: bool,
        reserves_nothing: bool = False,
        byte_copier: Callable[[], ByteCopier | None],
    ) -> None:
        self.float_inputs, self.floats = _floats(plan)  # type: ignore[method-assign, assignment]
        self.name, self.role, self.static, self.written = plan.name, role, static, written
        self.states, self.visible_outputs = GeneratorStates.of(plan), plan.visible_outputs
        self._plan, self._load, self._own_memory, self._byte_copier = plan, load, own_memory, byte_copier
        self._into_plan, self._buffers = into_buffers(plan)
        self._run: BoxedCallable | None = None
        self._into: dict[frozenset[int], LoadedPlan] = {}
        self._launches: PlanLaunches | None = None
        has_sizes = bool(self._symbols()) or reserves_nothing
        self.one_size = why_one_size(self._into_plan, byte_copier) if has_sizes else "it has no dynamic sizes"
        sources = [plan.size_sources[symbol] for symbol in self._symbols()]
        self.returned = _returned(plan, self._buffers)
        self.copied_into = tuple(_copied_into(plan))
        self._readers = tuple((source.input, source_reader(source)) for source in sources)
        self._shapes: dict[Key, Shapes] = {}
        self._layouts: dict[Key, tuple[Layout, ...]] = {}
        self._batches = None if self.written else Batches.of(plan, self._symbols())
        self.has_sizes = bool(self._readers)
        """Calls of it may have different sizes."""
        if not self._readers:
            self.key = _no_sizes  # type: ignore[method-assign]

    def _symbols(self) -> list[str]:
        """Symbols that the size key consists of."""
        plan = self._plan
        return [s for s in plan.size_symbols if s in plan.size_sources and s not in plan.float_symbols]

    def key(self, args: Sequence[Any]) -> Key:
        return tuple(read(args[n]) for n, read in self._readers)

    def shapes(self, key: Key) -> Shapes:
        found = self._shapes.get(key)
        if found is None:
            sizes = dict(zip(self._symbols(), key, strict=True))
            made = _shapes(self._plan, self._buffers, sizes)
            self._layouts[key] = made.buffers
            found = self._shapes[key] = _laid_out_as_results(made)
        return found

    def padded_key(self, key: Key, sizes: Sequence[int]) -> Key | None:
        return None if self._batches is None else self._batches.padded_key(key, sizes)

    def padded(self, args: Sequence[Any], key: Key, larger: Key) -> list:
        assert self._batches is not None
        return self._batches.padded(args, key, larger)

    def run(self, args: list) -> list:
        if self._run is None:
            self._run = self._loaded(self._plan)
        return self._run(args)

    def run_into(self, args: list, buffers: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        run = self._loaded_into(frozenset(n for n, buffer in enumerate(buffers) if buffer is None))
        layouts = self._layouts[self.key(args)]
        with below_autograd():
            given = [(b, own) for b, own in zip(buffers, layouts, strict=True) if b is not None]
            args += [b.as_strided(own.shape, own.stride) for b, own in given]
        return run(args)

    def _loaded_into(self, without: frozenset[int]) -> LoadedPlan:
        """The plan that takes the memory of its outputs, but for some buffers, which it returns."""
        found = self._into.get(without)
        if found is None:
            slots = frozenset(self._buffers[n] for n in without)
            plan = into_buffers(self._plan, slots)[0] if slots else self._into_plan
            found = self._into[without] = self._loaded(plan)
        return found

    def intermediate_bytes(self, key: Key) -> int:
        return self._only_launches().nbytes(key)

    def launch(self, args: Sequence[Any], buffers: Sequence[torch.Tensor], memory: int, stream: int) -> None:
        self._only_launches().launch([*args, *buffers], self.key(args), memory, stream)

    def _only_launches(self) -> PlanLaunches:
        if self._launches is None:
            library = self._loaded_into(frozenset()).library
            assert library is not None  # a plan that launches has one
            self._launches = PlanLaunches(self._into_plan, library, self._symbols(), self._byte_copier)
        return self._launches

    def prepare(self, into: bool, without: frozenset[int] = frozenset()) -> None:
        if into:
            self._loaded_into(without)
        elif self._run is None:
            self._run = self._loaded(self._plan)

    def _loaded(self, plan: Plan) -> LoadedPlan:
        function = self._load(plan)
        function.prepare()
        if self._own_memory:
            function.pool.give(function.pool.take())  # its frame must not come from a pool of recordings
        return function


def _floats(plan: Plan) -> tuple[tuple[int, ...], Callable[[Sequence[Any]], tuple[float, ...]]]:
    """The inputs that are floats, and a function of the inputs that gives all floats of a call.

    Raises ``NotRecordable`` where more than kernels depends on floats.
    """
    floats = frozenset(plan.float_symbols)
    _check_only_kernels_take(floats, plan)
    readers = [(symbol, source.input, source_reader(source)) for symbol, source in plan.size_sources.items()]
    computed = [(s.symbol, compile_size(s.text)) for s in plan.steps if isinstance(s, Compute) and s.symbol in floats]
    # The table has places for numbers of other sections, too, which nothing of this one is handed.
    here = [s for s in plan.float_symbols if s in plan.size_sources or s in dict(computed)]

    def values(args: Sequence[Any]) -> tuple[float, ...]:
        known = {symbol: read(args[n]) for symbol, n, read in readers}
        for symbol, compute in computed:
            known[symbol] = compute(known)
        return tuple(known[symbol] for symbol in here)

    inputs = tuple(plan.size_sources[symbol].input for symbol in here if symbol in plan.size_sources)
    return inputs, values if here else _no_floats


def _check_only_kernels_take(floats: frozenset[str], plan: Plan) -> None:
    texts: list[Any] = [text for slot in plan.slots for text in (*slot.shape, *slot.stride)]
    texts += [plan.arena_bytes, plan.scratch_bytes, *(step.offset for step in plan.steps if isinstance(step, View))]
    calls = [step for step in plan.steps if isinstance(step, Call)]
    texts += [repr((step.args, step.kwargs)) for step in calls]
    texts += [step.text for step in plan.steps if isinstance(step, Compute) and step.symbol not in floats]
    if depending := sorted(floats & {w for t in texts if isinstance(t, str) for w in re.findall(r"\w+", t)}):
        raise NotRecordable(f"not only kernels take its numbers {', '.join(depending)}, which are floats")
    if given := sorted(floats & {binding.symbol for step in calls for binding in step.symbol_bindings}):
        raise NotRecordable(f"its numbers {', '.join(given)} are floats that calls give")


def _copied_into(plan: Plan) -> Iterator[int]:
    """The inputs that a plan's copies write to."""
    roots = roots_of(plan)
    for step in plan.steps:
        if isinstance(step, Copy):
            root = plan.slots[roots.get(step.target, (step.target, ()))[0]]
            if root.storage == "input":
                yield root.number


def _no_floats(args: Sequence[Any]) -> tuple[float, ...]:
    return ()


def _no_sizes(args: Sequence[Any]) -> Key:
    return ()


def _kept(plan: Plan) -> list[int]:
    """Slots that outputs lie in, and that each call makes anew."""
    roots = roots_of(plan)
    kept = dict.fromkeys(roots.get(o.slot, (o.slot,))[0] for o in plan.outputs if isinstance(o, SlotRef))
    return [slot for slot in kept if plan.slots[slot].storage not in ("input", "constant")]


def _returned(plan: Plan, buffers: Sequence[int]) -> dict[int, int]:
    """Buffers, by number, that a library call allocates, with its number among library calls and copies."""
    device, kept = torch.device(plan.device).type, frozenset(buffers)
    others, found = _told_where(plan, kept).keys() | _unset(plan), dict[int, int]()
    calls = [step for step in plan.steps if isinstance(step, Call | Copy)]
    for number, step in enumerate(calls):
        for slot in step.outputs if isinstance(step, Call) and not step.symbol_bindings else ():
            if slot in kept and slot not in others and torch.device(plan.slots[slot].device).type == device:
                found[buffers.index(slot)] = number
    return dict(sorted(found.items()))


def into_buffers(plan: Plan, returned: frozenset[int] = frozenset()) -> tuple[Plan, tuple[int, ...]]:
    """A plan that takes the memory of its outputs behind its inputs, and which slots those are.

    What a library call returns is copied into it at the end, where the op has no variant that writes to memory it is
    given; all else is written where it belongs.  Of the slots ``returned`` it takes no memory: it returns what their
    calls gave, in the order of its outputs, and nothing else.
    """
    kept = tuple(_kept(plan))
    told, unset = _told_where(plan, frozenset(kept)), _unset(plan)
    slots, copies = list(plan.slots), list[Copy]()
    given: list[int] = []
    for slot in kept:
        if slot in returned:
            continue
        storage = plan.slots[slot].storage
        if storage not in ("own", "call"):
            raise NotRecordable(f"its output {plan.slots[slot].name} lies in memory that is not its own")
        made = attrs.evolve(plan.slots[slot], storage="input", number=len(plan.inputs) + len(given))
        if storage == "own" or slot in told:
            slots[slot] = made
            given.append(slot)
        else:
            slots.append(attrs.evolve(made, name=f"{made.name}_out"))
            given.append(len(slots) - 1)
            if slot not in unset:
                copies.append(Copy(len(slots) - 1, slot))
    steps, spans = _without_making(plan, frozenset(kept), told)
    variant = attrs.evolve(
        plan,
        name=f"{plan.name}.into",
        slots=tuple(slots),
        inputs=(*plan.inputs, *given),
        steps=(*steps, *copies),
        outputs=tuple(SlotRef(slot) for slot in kept if slot in returned),
        arena_spans=spans,
        kernel_slots=plan.table_slots,
    )
    return variant, kept


def _told_where(plan: Plan, kept: frozenset[int]) -> dict[int, Call]:
    """For slots that a library call makes, the call that writes to memory it is given, where its op has one."""
    found: dict[int, Call] = {}
    for step in plan.steps:
        if isinstance(step, Call) and len(step.outputs) == 1 and step.outputs[0] in kept and not step.symbol_bindings:
            variant = recorded_variant(resolve_op(step.op))
            if variant is not None:
                (slot,) = step.outputs
                assert slot is not None
                found[slot] = attrs.evolve(step, op=variant, outputs=(), into=slot)
    return found


def _unset(plan: Plan) -> set[int]:
    """Slots of results that a call leaves as its memory was."""
    calls = [
        (step, unset_results(resolve_op(step.op), step.args, step.kwargs))
        for step in plan.steps
        if isinstance(step, Call)
    ]
    return {slot for step, places in calls for n, slot in enumerate(step.outputs) if n in places and slot is not None}


def _without_making(
    plan: Plan, kept: frozenset[int], told: Mapping[int, Call]
) -> tuple[list[Any], tuple[tuple[int, int], ...]]:
    """The steps of a plan that neither make nor drop some slots, and where its arena is there among them."""
    steps: list[Any] = []
    before: list[int] = []  # how many steps are left before each
    for step in plan.steps:
        before.append(len(steps))
        if isinstance(step, Free):
            step = Free(tuple(s for s in step.slots if s not in kept))
            if not step.slots:
                continue
        if isinstance(step, Call) and len(step.outputs) == 1:
            (output,) = step.outputs
            step = step if output is None else told.get(output, step)
        if not (isinstance(step, Allocate) and step.slot in kept):
            steps.append(step)
    before.append(len(steps))
    spans = tuple((before[first], before[last + 1] - 1) for first, last in plan.arena_spans)
    return steps, tuple((first, last) for first, last in spans if first <= last)


def _shapes(plan: Plan, buffers: Sequence[int], sizes: Sizes) -> Shapes:
    """Layouts of a call of these sizes."""

    def layout(slot: int) -> Layout:
        found = plan.slots[slot]
        shape = tuple(compile_size(s)(sizes) for s in found.shape)
        return Layout(shape, tuple(compile_size(s)(sizes) for s in found.stride), found.torch_dtype)

    roots = roots_of(plan)

    def result(output: Any) -> Result:
        if isinstance(output, SizeRef):
            return Result("value", compile_size(output.text)(sizes))
        if not isinstance(output, SlotRef):
            return Result("value", output)
        root, offsets = roots.get(output.slot, (output.slot, ()))
        view = layout(output.slot) if offsets else None
        offset = sum(compile_size(o)(sizes) for o in offsets)
        base = plan.slots[root]
        if base.storage == "input":
            return Result("input", base.number, view, offset)
        if base.storage == "constant":
            return Result("constant", plan.constants[base.name], view, offset)
        return Result("buffer", list(buffers).index(root), view, offset)

    return Shapes(tuple(layout(slot) for slot in buffers), tuple(result(o) for o in plan.outputs))


def _laid_out_as_results(shapes: Shapes) -> Shapes:
    """Buffers that are given out as one view of all their elements have its layout: no replay makes a view of them."""
    buffers, instead = list(shapes.buffers), {}
    for number, layout in enumerate(shapes.buffers):
        (result, *others) = {r for r in shapes.results if r.kind == "buffer" and r.source == number}
        view = result.layout
        if others or view is None or result.offset or view.dtype != layout.dtype:
            continue
        if layout.extent == view.extent == math.prod(layout.shape) == math.prod(view.shape):
            buffers[number] = view
            instead[result] = Result("buffer", number)
    results = (instead.get(r, r) if r.kind == "buffer" else r for r in shapes.results)
    return Shapes(tuple(buffers), tuple(results))
