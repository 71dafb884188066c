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
