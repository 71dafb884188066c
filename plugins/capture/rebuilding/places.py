"""Where in the program something was raised: tracebacks name the program's line in place of the rebuilt code's."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any


def at_line(error: BaseException, function: types.FunctionType, line: int) -> BaseException:
    """``error``, raised by rebuilt code of a frame of ``function``, as if a line of the program had raised it.

    Raised again by a resume function (``frame_hook.throw``), it loses this entry: the interpreter adds one of its own.
    """
    trace = error.__traceback__
    inner = None if trace is None else trace.tb_next
    stand_in = _waiting_in(function.__code__, function.__globals__.get("__name__", "__main__"))
    error.__traceback__ = types.TracebackType(inner, stand_in.gi_frame, -1, line)  # type: ignore[arg-type]
    return error


@functools.lru_cache(256)
def _waiting_in(code: types.CodeType, module: str) -> types.GeneratorType[Any, Any, Any]:
    """A generator whose frame says of itself that it is one of ``code``, and holds nothing, not its caller either."""
    named = _wait.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno,
    )  # fmt: skip
    made: types.GeneratorType[Any, Any, Any] = types.FunctionType(named, {"__name__": module})()
    return made


def _wait() -> Iterator[None]:
    yield
