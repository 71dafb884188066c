"""The text of a plan, which has one line a slot and a step, read back.

All is in it but ``Plan.source``, which is for people; the library is named by its key.  What begins with ``--`` is for
people, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import attrs
import torch

from turret.errors import TextError
from turret.ir.reader import Names, Reader
from turret.ir.text import Line, blocks
from turret.plan.plan import (
    FIELDS_WRITTEN_APART,
    Allocate,
    Call,
    Compute,
    Copy,
    Free,
    Launch,
    Plan,
    Slot,
    SlotRef,
    SlotStorage,
    Step,
    View,
    slot_labels,
)
from turret.storage.codec import record_types


def parse_plan(text: str) -> Plan:
    """The plan of a text, without its source; ``TextError`` names the line that is not as expected."""
    left = blocks(text)
    if not left:
        raise TextError("expected the text of a plan ('plan NAME on DEVICE:'); given no lines")
    plan = _PlanReader(left).plan
    if left:
        raise TextError(f"line {left[0][0][0]}: given {left[0][0][1]!r}, expected the end of the text")
    return plan


class _PlanReader:
    """Reads the first of some blocks, and those of its branches, which come next."""

    def __init__(self, left: list[list[Line]]) -> None:
        self.left = left
        self.slots: list[Slot] = []
        self.numbers: dict[str, int] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.fields: dict[str, Any] = {}
        self.steps: list[Step] = []
        self.name = self.device = ""
        (number, title), *lines = left.pop(0)
        self._read(number, title, self._title)
        for at, line in lines:
            self._read(at, line, self._line)
        if missing := {"inputs", "outputs"} - self.fields.keys():
            raise TextError(f"line {number}: the plan {self.name} has no line of its {' and '.join(sorted(missing))}")
        self.plan = Plan(
            name=self.name,
            device=self.device,
            slots=tuple(self.slots),
            steps=tuple(self.steps),
            constants=self.constants,
            **self.fields,
        )

    def _read(self, number: int, text: str, statement: Callable[[_Line], None]) -> None:
        line = _Line(text, number, self)
        line.read(lambda _: statement(line))

    def _title(self, line: _Line) -> None:
        line.expect("plan")
        self.name = line.name()
        line.expect("on")
        self.device = line.device_name()
        line.expect(":")

    def _line(self, line: _Line) -> None:
        second = line.tokens[1:2]
        if second == [":"]:
            self._field(line)
        elif second in (["="], [","]) or "::" in line.next:
            self._result(line)
        else:
            readers = {
                "slot": self._slot,
                "constant": self._constant,
                "return": self._return,
                "allocate": lambda line: self.steps.append(Allocate(line.slot())),
                "free": lambda line: self.steps.append(Free(line.many(line.slot, ""))),
                "copy": self._copy,
                "launch": self._launch,
            }
            line.known(readers, "a line of a plan")(line)

    def _field(self, line: _Line) -> None:
        name = line.name()
        line.expect(":")
        if name in FIELDS_WRITTEN_APART or name not in attrs.fields_dict(Plan):
            line.at = 0
            line.fail("a field of a plan")
        self.fields[name] = line.value()

    def _slot(self, line: _Line) -> None:
        if line.take() != str(len(self.slots)):
            line.at -= 1
            line.fail(f"the number of the slot, {len(self.slots)}")
        name = line.name()
        line.expect(":")
        dtype, shape = line.name("a dtype"), tuple(line.value())
        line.expect("stride")
        stride = tuple(line.value())
        device = line.device_name() if line.accept("on") else self.device
        line.expect(",")
        storage = line.known({kind: kind for kind in get_args(SlotStorage)}, "where the slot lies")
        self.slots.append(Slot(name, shape, stride, dtype, device, storage, line.size() if line.next else 0))
        line.accept("(", "static", ")")
        self.numbers = {label: number for number, label in enumerate(slot_labels(tuple(self.slots)))}

    def _constant(self, line: _Line) -> None:
        name, value = line.constant()
        self.constants[name] = value

    def _return(self, line: _Line) -> None:
        self.fields["outputs"] = line.many(line.value, "")

    def _copy(self, line: _Line) -> None:
        source = line.slot()
        line.expect("into")
        self.steps.append(Copy(line.slot(), source))

    def _launch(self, line: _Line) -> None:
        function = line.name()
        line.expect("(")
        origins = line.many(line.name, ")")
        self.steps.append(line.made(Launch, {"function": function, "origins": origins, **line.tail()}))

    def _result(self, line: _Line) -> None:
        """A view, a number, or a call."""
        results = []
        while "::" not in line.next and not line.accept("="):
            results.append(line.name("a result"))
            line.accept(",")
        if line.accept("view", "of"):
            base = line.slot()
            line.expect("at")
            self.steps.append(View(self.numbers[results[0]], base, line.value()))
        elif line.next.startswith('"'):
            self.steps.append(Compute(results[0], line.value()))
        else:
            self._call(line, results)

    def _call(self, line: _Line, results: list[str]) -> None:
        op = line.name("an operator")
        line.expect("(")
        args, kwargs = line.arguments()
        into = line.slot() if line.accept("into") else None
        tail = line.tail()
        outputs = results[: len(results) - len(tail.get("symbol_bindings", ()))]
        slots = tuple(None if r == "_" else self.numbers[r] for r in outputs)
        fields = {"op": op, "args": args, "kwargs": kwargs, "outputs": slots, "into": into, **tail}
        self.steps.append(line.made(Call, fields))


class _Line(Reader):
    """A line of a plan: ``%name`` is a slot, ``plan name`` the plan of the next block."""

    def __init__(self, line: str, number: int, plan: _PlanReader) -> None:
        super().__init__(line, number, Names(records=record_types()))
        self.plan = plan

    def value(self) -> Any:
        if self.accept("%"):
            return SlotRef(self.slot())
        if self.accept("plan"):
            name = self.name()
            if not self.plan.left:
                self.fail(f"the text of the plan {name!r} behind this one")
            return _PlanReader(self.plan.left).plan
        return super().value()

    def slot(self) -> int:
        number: int = self.known(self.plan.numbers, "a slot")
        return number

    def device_name(self) -> str:
        return str(self.device())
