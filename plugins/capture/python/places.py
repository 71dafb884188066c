"""Where in the program something was raised: tracebacks name the program's line in place of the rebuilt code's."""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

from turret.frames import frame_hook


def at_line(
    error: BaseException, function: types.FunctionType, line: int, held: dict[str, Any] | None = None
) -> BaseException:
    """``error``, raised by rebuilt code of a frame of ``function``, as if a line of the program had raised it.

    ``held``: variables that it keeps as long as it has a traceback.  Raised again by a resume function
    (``frame_hook.throw``), it loses this entry: the interpreter adds one of its own.
    """
    trace = error.__traceback__
    inner = None if trace is None else trace.tb_next
    module = function.__globals__.get("__name__", "__main__")
    error.__traceback__ = traceback_entry(function.__code__, module, -1, line, inner, held)
    return error


def traceback_entry(
    code: types.CodeType,
    module: str,
    offset: int,
    line: int,
    inner: types.TracebackType | None,
    held: dict[str, Any] | None = None,
) -> types.TracebackType:
    """An entry for the instruction at ``offset`` of ``code``, or -1, around those of the frames that it called."""
    frame = frame_hook.load().frame(_of_no_variables(code, code.co_filename), {"__name__": module}, held or {})
    return types.TracebackType(inner, frame, offset, line)


@functools.lru_cache(256)
def _of_no_variables(code: types.CodeType, filename: str) -> types.CodeType:
    """Code for frames that say of themselves that they are frames of ``code``, and hold what they are given alone.

    It has as many instructions, so that offsets have their columns.  Code of another file may be equal.
    """
    nothing = bytes((dis.opmap["NOP"], 0)) * (len(code.co_code) // 2)
    return code.replace(
        co_code=nothing,
        co_filename=filename, co_exceptiontable=b"", co_flags=0, co_argcount=0, co_posonlyargcount=0,
        co_kwonlyargcount=0, co_nlocals=0, co_varnames=(), co_cellvars=(), co_freevars=(),
    )  # fmt: skip


MARK = "  #: "
"""What stands between a line of rebuilt code and the number of the program's line that it is run for."""


def shown_in_program(code: types.CodeType, text: str, of: types.CodeType) -> types.CodeType:
    """Rebuilt code whose marked lines are lines of the program, for what looks at the frame that calls it.

    A log names its caller's file and line, and so does a warning.  What is not marked is the first line of the function
    that the code stands for, ``of``; code of which no line is marked is as it was.
    """
    marked = {n: int(line.rpartition(MARK)[2]) for n, line in enumerate(text.splitlines(), 1) if MARK in line}
    if not marked:
        return code
    first = before = of.co_firstlineno
    table = b""
    for start, end, number in code.co_lines():
        line = marked.get(number or 0, first)
        table += entries_of_lines((end - start) // 2, line - before)
        before = line
    return code.replace(co_filename=of.co_filename, co_firstlineno=first, co_linetable=table)


def entries_of_lines(units: int, line: int | None) -> bytes:
    """Entries for a stretch of code: without a line, or ``line`` lines behind the stretch before."""
    made = bytearray()
    while units > 0:
        step = min(units, 8)
        made.append(128 | (15 if line is None else 13) << 3 | step - 1)
        if line is not None:
            made += _signed_number(line)
            line = 0
        units -= step
    return bytes(made)


def _signed_number(value: int) -> bytes:
    """A number as line tables have it: six bits a byte, the lowest first, and the sign in the lowest of all."""
    rest = abs(value) << 1 | (value < 0)
    made = bytearray()
    while rest >= 64:
        made.append(64 | rest & 63)
        rest >>= 6
    made.append(rest)
    return bytes(made)
