"""Where in the program something was raised: tracebacks name the program's line in place of the rebuilt code's."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any


def at_line(error: BaseException, function: types.FunctionType, line: int) -> BaseException:
    """``error``, raised by rebuilt code of a frame of ``function``, as if a line of the program had raised it.

    Raised again by a resume function (``frame_hook.throw``), it loses this entry: the interpreter adds one of its own.
    """
    trace = error.__traceback__
    inner = None if trace is None else trace.tb_next
    module = function.__globals__.get("__name__", "__main__")
    error.__traceback__ = traceback_entry(function.__code__, module, -1, line, inner)
    return error


def traceback_entry(
    code: types.CodeType, module: str, offset: int, line: int, inner: types.TracebackType | None
) -> types.TracebackType:
    """An entry for the instruction at ``offset`` of ``code``, or -1, around those of the frames that it called."""
    return types.TracebackType(inner, _waiting_in(code, module).gi_frame, offset, line)  # type: ignore[arg-type]


@functools.lru_cache(256)
def _waiting_in(code: types.CodeType, module: str) -> types.GeneratorType[Any, Any, Any]:
    """A generator whose frame says of itself that it is one of ``code``, and holds nothing, not its caller either.

    Its code is that of ``code``, so that offsets have their columns, but for the first instruction: that makes the
    generator.
    """
    flags = code.co_flags & (inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS) | inspect.CO_GENERATOR
    named = code.replace(
        co_code=bytes((dis.opmap["RETURN_GENERATOR"], 0)) + code.co_code[2:], co_exceptiontable=b"", co_flags=flags,
        co_argcount=0, co_posonlyargcount=0, co_kwonlyargcount=0, co_nlocals=0, co_varnames=(), co_cellvars=(),
        co_freevars=(),
    )  # fmt: skip
    made: types.GeneratorType[Any, Any, Any] = types.FunctionType(named, {"__name__": module})()
    return made
