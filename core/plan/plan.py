"""The plan: one compiled graph as flat steps over numbered slots; plain data, written and read as JSON.

A *slot* is a tensor in memory while the plan runs.  Kernels take a table with the address of every slot and a
table with the value of every size symbol; extern calls take tensors.  Consecutive kernels are launched by one
call (``Launch``).  Slots with an arena offset lie in one block of memory that a *workspace* owns: workspaces are made
on demand, one for each thread that is inside the plan at the same time, and kept for the next call.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from turret.errors import CacheError
from turret.graph.obstacles import Obstacle, border_text
from turret.hooks.size_source import Binding, SizeSource
from turret.storage.codec import record
from turret.storage.libraries import Library

if TYPE_CHECKING:
    from turret.ir.index import Size

SizeText = int | str
"""An int, or Python source of an int expression over size symbols."""


SlotStorage = Literal["input", "constant", "arena", "own", "call", "view", "elsewhere"]
"""Where a tensor lies; ``Slot`` says what each means."""

SCRATCH_ALIGNMENT = 256
"""Bytes; each scratch buffer starts at a multiple."""


_WORD = re.compile(r"[A-Za-z_]\w*")


@record
@attrs.frozen
class Slot:
    """A tensor in memory.

    ``storage``: ``input`` (``number`` is the input's), ``constant`` (of the plan), ``arena`` (``number`` is the
    offset in bytes), ``own`` (allocated in each call), ``call`` (what an extern call returns), ``view``; ``elsewhere``
    (in the plan of a section: no step of it has to do with the tensor).
    """

    name: str
    shape: tuple[SizeText, ...]
    stride: tuple[SizeText, ...]
    dtype: str
    device: str
    storage: SlotStorage
    number: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@record
@attrs.frozen
class Allocate:
    """Make the tensor of an ``own`` slot."""

    slot: int


@record
@attrs.frozen
class Launch:
    """Call a native function of the plan's library; not 0 is an error.

    The plan's device says what a function is and how it is run (``turret.hooks.devices.Segment``).  ``slots`` are those
    whose addresses its kernels use, ``origins`` its kernels' names; ``sources`` says for each kernel which lines of
    the user's it came from.  ``overwrites``: slots of inputs that it writes to.
    """

    function: str
    slots: tuple[int, ...]
    origins: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    overwrites: tuple[int, ...] = ()


@record
@attrs.frozen
class SlotRef:
    """A slot's tensor among the arguments of a call."""

    slot: int


@record
@attrs.frozen
class SizeRef:
    """A size computed in the call among the arguments of a call."""

    text: str


@record
@attrs.frozen
class Call:
    """Call an op (``namespace::name.overload``); ``outputs`` are the slots of what it returns.

    ``symbol_bindings`` are the numbers that it gives: they are computed from its outputs before anything else looks at
    them.
    Arguments of control flow may be plans, its branches.  With ``into`` the op is the ``out=`` variant and writes to
    that slot.  ``sequence``: it returns several tensors.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...] = ()
    into: int | None = None
    sequence: bool = False
    origins: tuple[str, ...] = ()
    symbol_bindings: tuple[Binding, ...] = ()


@record
@attrs.frozen
class Compute:
    """Compute a number from others: ``text`` is Python source."""

    symbol: str
    text: str


@record
@attrs.frozen
class View:
    """Make the tensor of a ``view`` slot over another slot's memory, at ``offset`` elements from its start."""

    slot: int
    base: int
    offset: SizeText


@record
@attrs.frozen
class Copy:
    """Write the elements of one slot's tensor into another's."""

    target: int
    source: int


@record
@attrs.frozen
class Free:
    """Drop the tensors of these slots: nothing reads them any more."""

    slots: tuple[int, ...]


@record
@attrs.frozen
class Section:
    """Steps ``first`` to ``last`` (both included) that are recorded together; or, with obstacles, not recorded.

    ``symbols`` are the numbers that its kernels read; ``batch_symbols`` those that count samples which its steps treat
    one by one.
    """

    first: int
    last: int
    obstacles: tuple[Obstacle, ...] = ()
    symbols: tuple[str, ...] = ()
    batch_symbols: tuple[str, ...] = ()

    @property
    def captured(self) -> bool:
        return not self.obstacles

    def __str__(self) -> str:
        return border_text(self.obstacles)


Step = Allocate | Launch | Call | View | Copy | Free | Compute


@record
@attrs.frozen(eq=False)
class Plan:
    """One compiled graph.

    ``inputs[i]`` is the slot of input ``i`` or None where it is a number.  ``outputs`` hold ``SlotRef``,
    ``SizeRef`` and plain values.  ``size_symbols`` orders the size table; those without a source are bound by steps.
    ``float_symbols`` stand for floats, of which the table holds the bits.  ``library`` is the native library, as its
    device loads it (None without kernels); ``source`` its source for people.  ``scratch_bytes``: memory behind the
    arena's that kernels work in.  ``arena_spans``: from which step to which (both included) arena and scratch memory
    are there, in order, where the device does not keep them; empty for the whole call.  ``check_bounds``: its kernels
    check every access (``turret.plan.bounds``).  ``arch``: what it was compiled for; it is loaded there alone.
    ``static_inputs`` are the positions of inputs that lie where they lay in the call before, most likely (parameters,
    buffers, and what of them is saved for the backward).  ``sections``: all steps, where they are cut for graph capture
    (``turret.plan.sections``); empty where they are not.  ``kernel_slots``: how many slots, the first ones, there were
    when its kernels were compiled (None: all).  ``batch_symbols`` (of a section's plan): symbols that count
    samples which its steps treat one by one, so that a call of more samples gives the same first ones.
    ``visible_outputs``: how many outputs, the first ones, leave for the user's program (None: all); the others are
    saved for a backward.
    """

    name: str
    device: str
    slots: tuple[Slot, ...]
    inputs: tuple[int | None, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    size_symbols: tuple[str, ...] = ()
    size_sources: dict[str, SizeSource] = attrs.field(factory=dict)
    constants: dict[str, torch.Tensor] = attrs.field(factory=dict)
    arena_bytes: int = 0
    library: Library | None = None
    source: str = ""
    scratch_bytes: SizeText = 0
    float_symbols: tuple[str, ...] = ()
    arena_spans: tuple[tuple[int, int], ...] = ()
    check_bounds: bool = False
    arch: str = ""
    static_inputs: tuple[int, ...] = ()
    sections: tuple[Section, ...] = ()
    kernel_slots: int | None = None
    batch_symbols: tuple[str, ...] = ()
    visible_outputs: int | None = None

    @property
    def needed_library(self) -> Library:
        """Its library; ``CacheError`` where it has none, and so no kernels to load."""
        if self.library is None:
            raise CacheError(f"the plan {self.name} names no library; expected one, for it launches kernels")
        return self.library

    @property
    def overwritten(self) -> tuple[int, ...]:
        """Slots of inputs that kernels write to."""
        return tuple(dict.fromkeys(s for step in self.steps if isinstance(step, Launch) for s in step.overwrites))

    @property
    def table_slots(self) -> int:
        """Slots that have an address in the table which kernels are handed; that of the arena comes behind them."""
        return len(self.slots) if self.kernel_slots is None else self.kernel_slots

    @property
    def bound_symbols(self) -> tuple[str, ...]:
        """Symbols whose values are known in the middle of a call."""
        bound = {s.symbol for s in self.steps if isinstance(s, Compute)}
        bound |= {b.symbol for s in self.steps if isinstance(s, Call) for b in s.symbol_bindings}
        return tuple(s for s in self.size_symbols if s in bound)

    @property
    def data_symbols(self) -> frozenset[str]:
        """Numbers that calls give, and those computed from them: others are known before a call."""
        found: set[str] = set()
        for step in self.steps:
            if isinstance(step, Call):
                found.update(binding.symbol for binding in step.symbol_bindings)
            elif isinstance(step, Compute) and not found.isdisjoint(_WORD.findall(step.text)):
                found.add(step.symbol)
        return frozenset(found)

    @property
    def scratch_offset(self) -> int:
        """Where in the arena scratch memory begins, in bytes."""
        return -(-self.arena_bytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT

    @property
    def branches(self) -> tuple[Plan, ...]:
        """Plans that calls of control flow run, in order."""
        return tuple(a for step in self.steps if isinstance(step, Call) for a in step.args if isinstance(a, Plan))

    def __str__(self) -> str:
        """The text that ``turret.plan.text.parse_plan`` reads; plans of branches follow it."""
        return "\n".join([*_Writer(self).lines(), *map(str, self.branches)])


def size_text(value: Size) -> SizeText:
    """A size as an int or as Python source over the names of its symbols."""
    if isinstance(value, int):
        return value
    from turret.torch_compat.sizes import PythonPrinter

    return str(PythonPrinter().doprint(_converted(value)))


def number_text(value: Size) -> str:
    """A number as Python source in which a float is divided by zero as in C++, where formulas of gradients are."""
    from turret.torch_compat.sizes import CppDivisionPrinter

    return str(CppDivisionPrinter().doprint(_converted(value)))


def _converted(value: Size) -> Any:
    import sympy

    from turret.torch_compat.sizes import of_sizes

    return sympy.sympify(value).replace(of_sizes.ToFloat, sympy.Function("float"))


FIELDS_WRITTEN_APART = ("name", "device", "slots", "steps", "outputs", "constants", "source")
"""Fields of a plan that have no line of their own, ``field: value``, in its text."""


def slot_labels(slots: tuple[Slot, ...]) -> list[str]:
    """A name for each slot that no other has, and that is not that of a result which is none."""
    count = Counter(slot.name for slot in slots)
    return [s.name if count[s.name] == 1 and s.name != "_" else f"{s.name}#{number}" for number, s in enumerate(slots)]


class _Writer:
    """Writes the lines of a plan, as ``turret.plan.text`` reads them."""

    def __init__(self, plan: Plan) -> None:
        from turret.hooks.text import notation  # which needs sympy: loading plans from a cache does not

        self.plan = plan
        self.notation = notation
        self.name = notation.name_text
        self.labels = [notation.name_text(label) for label in slot_labels(plan.slots)]

    def lines(self) -> list[str]:
        """The whole plan, without those of its branches."""
        plan = self.plan
        lines = [f"plan {self.name(plan.name)} on {plan.device}:  # {len(plan.steps)} steps"]
        fields = self.notation.set_fields(plan)
        lines += [f"  {name}: {self.value(value)}" for name, value in fields if name not in FIELDS_WRITTEN_APART]
        lines += [f"  constant {self.notation.constant_text(name, value)}" for name, value in plan.constants.items()]
        lines += [self.slot(number, slot) for number, slot in enumerate(plan.slots)]
        opened, closed = ({span[end] for span in plan.arena_spans} for end in (0, 1))
        begins = {section.first: section for section in plan.sections}
        for number, step in enumerate(plan.steps):
            lines += [str(begins[number])] if number in begins else []
            lines += ["  -- take the arena"] if number in opened else []
            lines.append(f"  {self.step(step)}")
            lines += ["  -- return the arena"] if number in closed else []
        lines.append(f"  return {', '.join(map(self.value, plan.outputs))}")
        return lines

    def slot(self, number: int, slot: Slot) -> str:
        where = f" on {slot.device}" if slot.device != self.plan.device else ""
        storage = f"{slot.storage} {slot.number}" if slot.number or slot.storage in ("input", "arena") else slot.storage
        storage += " (static)" if slot.storage == "input" and slot.number in self.plan.static_inputs else ""
        layout = f"{slot.dtype}{self.value(list(slot.shape))} stride {self.value(list(slot.stride))}"
        return f"  slot {number} {self.name(slot.name)}: {layout}{where}, {storage}"

    def value(self, value: Any) -> str:
        return self.notation.value_text(value, self._leaf)

    def _leaf(self, value: Any) -> str | None:
        if isinstance(value, SlotRef):
            return f"%{self.labels[value.slot]}"
        return f"plan {self.name(value.name)}" if isinstance(value, Plan) else None

    def step(self, step: Step) -> str:
        names = self.labels
        match step:
            case Allocate():
                return f"allocate {names[step.slot]}"
            case Launch():
                tail = self.notation.tail_text(step, "function", "origins")
                return f"launch {step.function} ({', '.join(map(self.name, step.origins))}){tail}"
            case View():
                return f"{names[step.slot]} = view of {names[step.base]} at {self.value(step.offset)}"
            case Copy():
                return f"copy {names[step.source]} into {names[step.target]}"
            case Free():
                return f"free {', '.join(names[s] for s in step.slots)}"
            case Compute():
                return f"{self.name(step.symbol)} = {self.value(step.text)}"
            case Call():
                return self._call(step)

    def _call(self, step: Call) -> str:
        arguments = [self.value(a) for a in step.args] + [f"{k}={self.value(v)}" for k, v in step.kwargs.items()]
        results = ["_" if r is None else self.labels[r] for r in step.outputs]
        results += [b.symbol for b in step.symbol_bindings]
        into = "" if step.into is None else f" into {self.labels[step.into]}"
        head = f"{', '.join(results)} = " if results else ""
        tail = self.notation.tail_text(step, "op", "args", "kwargs", "outputs", "into")
        return f"{head}{step.op}({', '.join(arguments)}){into}{tail}"
