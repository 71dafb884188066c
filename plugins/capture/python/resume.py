"""Resume functions: the rest of a frame after a graph break, as a function of its stack and locals.

The code of a resume function is the original's bytes, unchanged but for the numbers of cells, behind a prologue that
puts the stack back and jumps to the instruction to go on from (or raises, where the instruction that ran in Python
did).  Lines and exception handlers are the original's, so tracebacks read as if nothing had happened.
Parameters: one for each variable of the original (those not needed are deleted first), then the stack.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Sequence
from typing import Any

import attrs

from turret.frames import frame_hook
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python.bytecode import decode, read_exception_table, slot_names, write_exception_table
from turret.plugins.capture.python.instructions import (
    CACHE_COUNT,
    CALL_INSTRUCTIONS,
    CELLS_ARE_LOADED_AS_VARIABLES,
    NULL_IS_ABOVE,
)
from turret.plugins.capture.python.places import entries_of_lines


@attrs.frozen(eq=False)
class ResumePoint:
    """Where a resume function came from: a place in the code that the user wrote."""

    origin: types.CodeType
    shift: int
    """Bytes of the prologue."""


STACK = "__stack"
"""What the parameters of a resume function begin with that are entries of the stack."""
_points: dict[types.CodeType, ResumePoint] = {}
_made: dict[tuple, types.CodeType] = {}


def origin_of(code: types.CodeType, offset: int) -> tuple[types.CodeType, int]:
    """The user's code and the offset in it that ``offset`` of a resume function stands for."""
    point = _points.get(code)
    return (code, offset) if point is None else (point.origin, offset - point.shift)


def is_resume(code: types.CodeType) -> bool:
    """Whether a code object is that of a resume function."""
    return code in _points


def resume_code(
    code: types.CodeType,
    index: int,
    stack: str,
    unbound: frozenset[int],
    *,
    raising: bool,
    hidden: frozenset[str] = frozenset(),
) -> types.CodeType:
    """Code that goes on at instruction ``index`` of ``code``.

    ``stack`` has a letter for each entry of the value stack: ``v`` a value, ``n`` the interpreter's NULL, ``p`` what
    a handler begins with: the exception handled before (its parameter is the one that the handler handles).
    ``unbound``: variables without a value.  ``raising``: the last parameter is an exception, raised as if by
    instruction ``index``.  ``hidden``: cells of the frame that wait on the stack while a comprehension, which has no
    frame of its own from 3.12 on, has their slots for variables of its own.
    """
    decoded = decode(code)
    offset = decoded.instructions[index].offset
    while offset >= 2 and code.co_code[offset - 2] == dis.EXTENDED_ARG:
        offset -= 2
    origin, offset = origin_of(code, offset)
    key = (origin, offset, stack, unbound, raising, hidden)
    made = _made.get(key)
    if made is None:
        made = _made[key] = _assemble(*key)
    return made


def generator_code(code: types.CodeType, index: int, stack: str, unbound: frozenset[int]) -> types.CodeType:
    """Code of a generator that waits at the ``yield`` at instruction ``index`` of ``code``, once it was advanced.

    Its prologue puts the stack back and yields at once, covered by the handlers of the original ``yield``, so that
    ``send`` and ``throw`` find the generator where it was.
    """
    decoded = decode(code)
    waits, resumes, after = decoded.instructions[index : index + 3]
    offset = waits.offset
    key = (code, offset, stack, unbound, "generator")
    made = _made.get(key)
    if made is None:
        prologue = _Writer()
        if cell_names(code):
            prologue.add("COPY_FREE_VARS", len(cell_names(code)))
        for name in ("RETURN_GENERATOR", "POP_TOP", "RESUME"):
            prologue.add(name, 0)
        _write_stack(prologue, code, stack, unbound, _parameters(code, stack))
        start = len(prologue.content)
        prologue.add("LOAD_CONST", 0)
        prologue.add("YIELD_VALUE", waits.arg)
        covered = (start, len(prologue.content))
        prologue.add("RESUME", resumes.arg)
        prologue.jump_forward(after.offset)
        made = _made[key] = _finish(code, prologue, stack, offset, covered, ())
    return made


def cell_names(code: types.CodeType) -> tuple[str, ...]:
    """Cells that a resume function of ``code`` needs, in the order of its closure: the frame's own come first."""
    origin, _ = origin_of(code, 0)
    if not set(origin.co_cellvars).isdisjoint(
        origin.co_freevars
    ):  # a comprehension's variable and a free one (3.12 on)
        raise Unsupported("a graph break in a function with two cells of one name")
    return (*origin.co_cellvars, *origin.co_freevars)


def _assemble(
    origin: types.CodeType, offset: int, stack: str, unbound: frozenset[int], raising: bool, hidden: frozenset[str]
) -> types.CodeType:
    prologue = _Writer()
    if cell_names(origin):
        prologue.add("COPY_FREE_VARS", len(cell_names(origin)))
    prologue.add("RESUME", 0)
    further = ("__raised",) if raising else ()
    number = _write_stack(prologue, origin, stack, unbound, _parameters(origin, stack, further), hidden)
    covered = None
    if raising:
        start = len(prologue.content)
        _write_throw(prologue, len(origin.co_consts), number)
        covered = (start, len(prologue.content))
    else:
        prologue.jump_forward(offset)
    made = _finish(origin, prologue, stack, offset, covered, further)
    _points[made] = ResumePoint(origin, len(prologue.content))
    return made


def _write_throw(prologue: _Writer, constant: int, slot: int) -> None:
    """Raise the exception of a variable, which is let go of: by a call, for RAISE_VARARGS would set its context."""
    function = [("PUSH_NULL", 0), ("LOAD_CONST", constant)]
    for name, arg in reversed(function) if NULL_IS_ABOVE else function:
        prologue.add(name, arg)
    prologue.add("LOAD_FAST", slot)
    prologue.add("DELETE_FAST", slot)
    for name in CALL_INSTRUCTIONS:
        prologue.add(name, 1)


def _parameters(origin: types.CodeType, stack: str, further: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of the variables of a resume function, all of them parameters."""
    return (*origin.co_varnames, *(f"{STACK}{n}" for n in range(stack.count("v") + stack.count("p"))), *further)


def _write_stack(
    prologue: _Writer,
    origin: types.CodeType,
    stack: str,
    unbound: frozenset[int],
    parameters: tuple[str, ...],
    hidden: frozenset[str] = frozenset(),
) -> int:
    """Unbind variables, place the frame's own cells, and push the stack; returns the slot after those of the stack."""
    for slot in sorted(unbound):
        prologue.add("DELETE_FAST", slot)
    slots = _cell_slots(origin, len(parameters))
    first = len(parameters) + sum(n not in origin.co_varnames for n in origin.co_cellvars)
    for number, name in enumerate(origin.co_cellvars):
        if name not in hidden:
            prologue.add("LOAD_FAST", first + number)
            prologue.add("STORE_FAST", slots[name])
    number = len(origin.co_varnames)
    for entry in stack:
        if entry == "n":
            prologue.add("PUSH_NULL", 0)
            continue
        prologue.add("LOAD_FAST", number)
        prologue.add("DELETE_FAST", number)
        number += 1
        if entry == "p":
            prologue.add("PUSH_EXC_INFO", 0)
            prologue.add("POP_TOP", 0)
    return number


def _finish(
    origin: types.CodeType,
    prologue: _Writer,
    stack: str,
    offset: int,
    covered: tuple[int, int] | None,
    further: tuple[str, ...],
) -> types.CodeType:
    """The code object: prologue and original bytes; ``covered`` of the prologue has the handlers of ``offset``."""
    cells, parameters = cell_names(origin), _parameters(origin, stack, further)
    count = len(parameters)
    shift = len(prologue.content)
    entries = [
        (s + shift, e + shift, t + shift, depth, lasti)
        for s, e, t, depth, lasti in read_exception_table(origin.co_exceptiontable)
    ]
    if covered is not None:
        handler = next((x for x in entries if x[0] <= offset + shift < x[1]), None)
        if handler is not None:
            entries.insert(0, (*covered, *handler[2:]))
    return origin.replace(
        co_code=bytes(prologue.content) + _renumber_cells(origin, count),
        co_argcount=count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_nlocals=count,
        co_varnames=parameters,
        co_freevars=cells,
        co_flags=origin.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) | (inspect.CO_NESTED if cells else 0),
        co_stacksize=max(origin.co_stacksize, len(stack) + 4),
        co_consts=(*origin.co_consts, frame_hook.load().throw),
        co_exceptiontable=write_exception_table(entries),
        co_linetable=_lines_of_prologue(origin, shift, offset, covered) + origin.co_linetable,
        co_name=origin.co_name,
    )


class _Writer:
    def __init__(self) -> None:
        self.content = bytearray()

    def add(self, name: str, arg: int) -> None:
        op = dis.opmap[name]
        for shift in (24, 16, 8):
            if arg >> shift:
                self.content += bytes((dis.EXTENDED_ARG, arg >> shift & 255))
        self.content += bytes((op, arg & 255)) + bytes(2 * CACHE_COUNT[op])

    def jump_forward(self, distance: int) -> None:
        self.add("JUMP_FORWARD", distance // 2)


def _lines_of_prologue(origin: types.CodeType, size: int, offset: int, covered: tuple[int, int] | None) -> bytes:
    """Entries of a line table for the prologue: no line, but for the part that stands for the instruction there."""
    if covered is None:
        return entries_of_lines(size // 2, None)
    line = decode(origin).line_at(offset) - origin.co_firstlineno
    start, end = (n // 2 for n in covered)
    # Lines count from the entry before: the last unit, the cache of a call, goes back to where the original begins.
    return b"".join(
        (
            entries_of_lines(start, None), entries_of_lines(end - start - 1, line), entries_of_lines(1, -line),
            entries_of_lines(size // 2 - end, None),
        )
    )  # fmt: skip


_CELL_OPERATIONS = frozenset({"LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF"})


def _cell_slots(origin: types.CodeType, base: int) -> dict[str, int]:
    """The slots of cells in a resume function with ``base`` variables.

    The frame's own cells come in as free variables and are moved to slots of cells: a function that reads a cell of
    its own that is empty raises another exception than one that reads a free variable.
    """
    variables, own = origin.co_varnames, origin.co_cellvars
    plain = [name for name in own if name not in variables]
    slots = {name: base + number for number, name in enumerate(plain)}
    slots |= {name: variables.index(name) for name in own if name in variables}
    first = base + len(plain) + len(own)
    return slots | {name: first + number for number, name in enumerate(origin.co_freevars)}


def _renumber_cells(origin: types.CodeType, base: int) -> bytes:
    """The code's bytes with every cell where the resume function has it."""
    if not cell_names(origin):
        return origin.co_code
    slots = _cell_slots(origin, base)
    own = len(origin.co_varnames)
    where = {
        slot: slots[name] for slot, name in enumerate(slot_names(origin)) if slot >= own or name in origin.co_cellvars
    }
    content = bytearray(origin.co_code)
    for instruction in decode(origin).instructions:
        moved = instruction.name in _CELL_OPERATIONS or (
            CELLS_ARE_LOADED_AS_VARIABLES and instruction.name == "LOAD_FAST" and instruction.arg in where
        )
        if not moved:
            continue
        slot = where[instruction.arg]
        if slot > 255 or instruction.arg > 255:
            raise Unsupported("a graph break in a function with more than 255 variables")
        content[instruction.offset + 1] = slot
    return bytes(content)


def make_function(
    code: types.CodeType, scope: dict[str, Any], name: str, cells: Sequence[types.CellType]
) -> types.FunctionType:
    """The resume function itself, over the cells of the frame that it continues."""
    return types.FunctionType(code, scope, name, None, tuple(cells) or None)
