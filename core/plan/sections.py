"""The sections of a plan as plans of their own, and what joins them again.

A section's plan numbers slots and sizes as the whole plan does, for whose tables the kernels were compiled.  What it
needs of others it takes as inputs: tensors, and every number that it mentions.  What others need of it are its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import attrs
import torch

from turret.graph.externs import resolve_op
from turret.graph.obstacles import Obstacle
from turret.hooks.products import BoxedCallable
from turret.hooks.size_source import SizeSource
from turret.plan import (
    Allocate,
    Call,
    Compute,
    Copy,
    Launch,
    Plan,
    Section,
    SizeRef,
    SizeText,
    Slot,
    SlotRef,
    Step,
    View,
)
from turret.plan.executor import PLAN_FILE, argument_names, refs, symbol_values
from turret.storage.source_lines import show_lines

_WORD = re.compile(r"[A-Za-z_]\w*")


@attrs.frozen(eq=False)
class PlanSection:
    """One section: ``plan`` takes the values that ``takes`` names and gives those that ``gives`` names, in order.

    Tensors go by their slots' names, numbers by their symbols'.  ``obstacles``: why it is not recorded.  ``written``:
    positions of inputs whose memory its steps write to.  ``plan.static_inputs``: those that lie where they lay before.
    """

    plan: Plan
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    obstacles: tuple[Obstacle, ...] = ()
    written: tuple[int, ...] = ()

    @property
    def captured(self) -> bool:
        return not self.obstacles


def sections_of(plan: Plan) -> tuple[PlanSection, ...]:
    """A plan's sections in order; all of it as one that is recorded where it is not cut."""
    splitter = _Splitter(plan)
    return tuple(splitter.section(number) for number in range(len(splitter.sections)))


def written_inputs(plan: Plan) -> tuple[int, ...]:
    """Positions of the inputs that a plan's steps write to, themselves or views of them."""
    bases = {step.slot: step.base for step in plan.steps if isinstance(step, View)}
    written = {_root(slot, bases) for step in plan.steps for slot in _written(step)}
    return tuple(number for number, slot in enumerate(plan.inputs) if slot is not None and slot in written)


def joined(plan: Plan, sections: Sequence[PlanSection], functions: Sequence[BoxedCallable]) -> BoxedCallable:
    """What runs a plan by a function for each of its sections; it takes and gives what the plan's own would.

    It keeps no value longer than a section needs it.
    """
    if len(sections) == 1 and _is_whole(plan, sections[0]):
        return functions[0]
    return _Driver(plan, sections, functions).build()


def _is_whole(plan: Plan, section: PlanSection) -> bool:
    """Whether a section's plan takes and gives exactly what the whole plan does."""
    names = tuple(None if slot is None else plan.slots[slot].name for slot in plan.inputs)
    outputs = tuple(plan.slots[o.slot].name if isinstance(o, SlotRef) else None for o in plan.outputs)
    return section.takes == names and section.gives == outputs


def _root(slot: int, bases: dict[int, int]) -> int:
    while slot in bases:
        slot = bases[slot]
    return slot


def _written(step: Step) -> list[int]:
    """Slots that a step writes to, beside those that it makes."""
    if isinstance(step, Copy):
        return [step.target]
    if isinstance(step, Launch):
        return list(step.overwrites)
    if not isinstance(step, Call):
        return []
    schema = getattr(resolve_op(step.op), "_schema", None)
    if schema is None or step.into is not None or not schema.is_mutable:
        return []
    found: list[int] = []
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = step.args[number] if number < len(step.args) else step.kwargs.get(argument.name)
            found += [ref.slot for ref in refs(value)]
    return found


def touched_slots(step: Step) -> list[int]:
    """Slots that a step reads, writes or makes."""
    match step:
        case Allocate():
            return [step.slot]
        case Launch():
            return list(step.slots)
        case View():
            return [step.slot, step.base]
        case Copy():
            return [step.target, step.source]
        case Call():
            into = [] if step.into is None else [step.into]
            made = [slot for slot in step.outputs if slot is not None]
            return [ref.slot for ref in refs((step.args, list(step.kwargs.values())))] + made + into
    return []


def _made(step: Step) -> list[int]:
    """Slots whose tensors a step makes."""
    match step:
        case Allocate() | View():
            return [step.slot]
        case Call():
            return [slot for slot in step.outputs if slot is not None]
    return []


def _bound(step: Step) -> list[str]:
    """Numbers that are known once a step has run."""
    if isinstance(step, Compute):
        return [step.symbol]
    return [b.symbol for b in step.symbol_bindings] if isinstance(step, Call) else []


def size_texts(value: Any) -> list[SizeText]:
    """The sizes among the arguments of a call."""
    if isinstance(value, SizeRef):
        return [value.text]
    if isinstance(value, list | tuple):
        return [text for item in value for text in size_texts(item)]
    return []


class _Splitter:
    """One plan on its way to sections."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sections = plan.sections or (Section(0, len(plan.steps) - 1, (), plan.size_symbols),)
        self.known = frozenset(plan.size_symbols)
        self.of_data = plan.data_symbols
        self.steps = [self._steps(section) for section in self.sections]
        self.needs = [self._needs(number) for number in range(len(self.sections))]
        self.tensors = [{s for step in steps for s in touched_slots(step) if self._moves(s)} for steps in self.steps]
        self.inputs = {slot: number for number, slot in enumerate(plan.inputs) if slot is not None}
        self.bases = {step.slot: step for step in plan.steps if isinstance(step, View)}

    def _moves(self, slot: int) -> bool:
        return self.plan.slots[slot].storage not in ("arena", "constant")

    def _steps(self, section: Section) -> list[Step]:
        """A section's steps; what the host computes for one that is recorded comes before it."""
        steps = self.plan.steps[section.first : section.last + 1]
        return [step for step in steps if not (section.captured and isinstance(step, Compute))]

    def _needs(self, number: int) -> frozenset[str]:
        """Numbers that a section mentions."""
        section, slots = self.sections[number], self.plan.slots
        texts: list[SizeText] = []
        for step in self.steps[number]:
            match step:
                case Allocate() | View():
                    texts += [*slots[step.slot].shape, *slots[step.slot].stride]
                    texts += [step.offset] if isinstance(step, View) else []
                case Compute():
                    texts.append(step.text)
                case Call():
                    texts += size_texts((step.args, list(step.kwargs.values())))
                    for slot in step.outputs:
                        texts += [] if slot is None else [*slots[slot].shape, *slots[slot].stride]
        found = self._words(texts) | frozenset(section.symbols)
        return found | self._words([self._scratch(number, found)])

    def _words(self, texts: Iterable[SizeText]) -> frozenset[str]:
        words = {word for text in texts if isinstance(text, str) for word in _WORD.findall(text)}
        return self.known & words

    def _scratch(self, number: int, mentioned: frozenset[str]) -> SizeText:
        """Bytes of scratch memory: the whole plan's, less what depends on numbers that are of no concern here."""
        text, bound = self.plan.scratch_bytes, {s for step in self.steps[number] for s in _bound(step)}
        if not any(isinstance(step, Launch) for step in self.steps[number]):
            return 0
        if isinstance(text, int):
            return text
        others = self.of_data - mentioned - bound
        return _WORD.sub(lambda match: "0" if match[0] in others else match[0], text)

    def _taken(self, number: int) -> tuple[list[int], list[str]]:
        """Slots and numbers that a section is handed."""
        made = {slot for step in self.steps[number] for slot in _made(step)}
        bound = {symbol for step in self.steps[number] for symbol in _bound(step)}
        order = lambda slot: (self.inputs.get(slot, len(self.plan.inputs)), slot)  # noqa: E731
        return sorted(self.tensors[number] - made, key=order), sorted(self.needs[number] - bound)

    def _given(self, number: int) -> tuple[list[int], list[str]]:
        """Slots and numbers that a section makes and hands on."""
        made = dict.fromkeys(slot for step in self.steps[number] for slot in _made(step))
        bound = [symbol for step in self.steps[number] for symbol in _bound(step)]
        later = frozenset().union(*self.tensors[number + 1 :]) | {ref.slot for ref in refs(self.plan.outputs)}
        needed = self._needed_after(number)
        return [slot for slot in made if slot in later], [symbol for symbol in bound if symbol in needed]

    def section(self, number: int) -> PlanSection:
        """A section's plan."""
        plan, steps = self.plan, self.steps[number]
        taken, numbers = self._taken(number)
        given, told = self._given(number)
        own = attrs.evolve(
            plan,
            name=f"{plan.name}.{number}",
            slots=self._slots(number, taken),
            inputs=(*taken, *(None for _ in numbers)),
            steps=tuple(steps),
            outputs=(*(SlotRef(slot) for slot in given), *(SizeRef(symbol) for symbol in told)),
            size_sources={s: self._source(s, len(taken) + k) for k, s in enumerate(numbers)},
            static_inputs=tuple(k for k, slot in enumerate(taken) if self._is_static(slot)),
            library=plan.library if any(isinstance(step, Launch) for step in steps) else None,
            source="",
            sections=(),
            visible_outputs=None,
            batch_symbols=self.sections[number].batch_symbols,
            **self._memory(number),
        )
        names = [slot.name for slot in plan.slots]
        takes, gives = (names[s] for s in taken), (names[s] for s in given)
        obstacles = self.sections[number].obstacles
        return PlanSection(own, (*takes, *numbers), (*gives, *told), obstacles, written_inputs(own))

    def _needed_after(self, number: int) -> frozenset[str]:
        """Numbers that later sections mention, or what is computed between sections, or outputs."""
        outputs = self._words(size_texts(self.plan.outputs))
        computed = self._words(step.text for step in self.plan.steps if isinstance(step, Compute))
        return outputs.union(computed, *self.needs[number + 1 :])

    def _source(self, symbol: str, position: int) -> SizeSource:
        return SizeSource(position, None, "float" if symbol in self.plan.float_symbols else "size")

    def _is_static(self, slot: int) -> bool:
        """Whether a tensor is a static input, or lies in one at a place that is always the same."""
        while slot in self.bases and isinstance(self.bases[slot].offset, int):
            slot = self.bases[slot].base
        return self.inputs.get(slot) in self.plan.static_inputs

    def _slots(self, number: int, taken: Sequence[int]) -> tuple[Slot, ...]:
        touched = {slot for step in self.steps[number] for slot in touched_slots(step)}
        touched |= {step.slot for step in self.steps[number] if isinstance(step, View)}
        places = {slot: position for position, slot in enumerate(taken)}
        found = []
        for slot, described in enumerate(self.plan.slots):
            if slot in places:
                described = attrs.evolve(described, storage="input", number=places[slot])
            elif slot not in touched:
                described = attrs.evolve(described, storage="elsewhere", number=0)
            found.append(described)
        return tuple(found)

    def _memory(self, number: int) -> dict[str, Any]:
        """Arena and scratch memory of a section."""
        plan, section = self.plan, self.sections[number]
        scratch = self._scratch(number, self.needs[number])
        used = [plan.slots[s] for step in self.steps[number] for s in touched_slots(step)]
        arena = max((_end(slot) for slot in used if slot.storage == "arena"), default=0)
        if scratch:
            arena = plan.arena_bytes  # kernels look for scratch memory behind all of it
        kept = [n for n in range(section.first, section.last + 1)
                if not (section.captured and isinstance(plan.steps[n], Compute))]  # fmt: skip
        spans = []
        for first, last in plan.arena_spans:
            inside = [position for position, n in enumerate(kept) if first <= n <= last]
            spans += [(inside[0], inside[-1])] if inside else []
        if plan.arena_spans and not spans:
            arena = scratch = 0  # the whole plan holds no memory here
        return {"arena_bytes": arena, "scratch_bytes": scratch, "arena_spans": tuple(spans)}


def _end(slot: Slot) -> int:
    """Where in the arena the memory of a slot ends, in bytes; what has no elements has a place there, too."""
    shape, stride = cast(tuple[int, ...], slot.shape), cast(tuple[int, ...], slot.stride)  # as all in the arena have
    elements = 1 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return slot.number + elements * slot.torch_dtype.itemsize


class _Driver:
    """Writes the function that joins sections."""

    def __init__(self, plan: Plan, sections: Sequence[PlanSection], functions: Sequence[BoxedCallable]) -> None:
        self.plan, self.sections, self.functions = plan, sections, functions
        self.variables = {slot.name: f"t{number}" for number, slot in enumerate(plan.slots)}
        self.names: dict[str, Any] = {"torch": torch, "math": __import__("math")}
        self.lines: list[str] = []

    def build(self) -> BoxedCallable:
        plan = self.plan
        names = argument_names(plan)
        if names:
            self.lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = args")
        self.lines.append("args.clear()")
        self.lines += [f"{symbol} = {value}" for symbol, value in symbol_values(plan, names)]
        waiting = [step for step in plan.steps if isinstance(step, Compute)]
        inside = {step.symbol for s in self.sections for step in s.plan.steps if isinstance(step, Compute)}
        waiting = [step for step in waiting if step.symbol not in inside]
        known = set(plan.size_sources)
        last = self._last_uses()
        for number, section in enumerate(self.sections):
            waiting = self._computed(waiting, known)
            self._call(number, section, [n for n in section.takes if last.get(n) == number])
            known.update(section.gives)
        self._computed(waiting, known)
        self.lines.append(f"return [{', '.join(map(self._output, plan.outputs))}]")
        return self._function()

    def _computed(self, waiting: list[Compute], known: set[str]) -> list[Compute]:
        """Compute what can be computed by now; the rest."""
        rest, symbols = [], frozenset(self.plan.size_symbols)
        for step in waiting:
            if symbols & set(_WORD.findall(step.text)) <= known:
                self.lines.append(f"{step.symbol} = {step.text}")
                known.add(step.symbol)
            else:
                rest.append(step)
        return rest

    def _last_uses(self) -> dict[str, int]:
        """The section after which a tensor is not needed."""
        outputs = {self.plan.slots[ref.slot].name for ref in refs(self.plan.outputs)}
        found = {n: k for k, s in enumerate(self.sections) for n in s.takes if n in self.variables}
        return {name: number for name, number in found.items() if name not in outputs}

    def _call(self, number: int, section: PlanSection, dead: Sequence[str]) -> None:
        self.names[f"run{number}"] = self.functions[number]
        self.lines.append(f"values = [{', '.join(self.variables.get(n, n) for n in section.takes)}]")
        if dead:
            self.lines.append(" = ".join(self.variables[name] for name in dead) + " = None")
        results = "".join(f"{self.variables.get(n, n)}, " for n in section.gives)
        self.lines.append(f"{results}= run{number}(values)" if results else f"run{number}(values)")

    def _output(self, value: Any) -> str:
        if isinstance(value, SlotRef):
            return f"t{value.slot}"
        if isinstance(value, SizeRef):
            return f"({value.text})"
        name = f"value{len(self.names)}"
        self.names[name] = value
        return name

    def _function(self) -> BoxedCallable:
        source = "def run(args):\n" + "".join(f"    {line}\n" for line in self.lines)
        self.names["writes_inputs"] = bool(self.plan.overwritten) or any(isinstance(s, Copy) for s in self.plan.steps)
        filename = f"{PLAN_FILE} {self.plan.name} joined {id(self):x}>"
        exec(compile(source, filename, "exec"), self.names)
        function: Any = self.names["run"]
        show_lines(function, source)
        functions = self.functions
        function.source, function.plan = source, self.plan
        function.prepare = lambda: [prepare() for f in functions if (prepare := getattr(f, "prepare", None))]
        made: BoxedCallable = function
        return made
