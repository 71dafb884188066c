"""A record of the program's functions that ran, by which a trace shows that its key covers all that it went through."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

from turret.pipeline.keys.libraries import is_library


class ExecutedCode:
    """Code objects of the program that ran, and whether all of them could be seen."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, str] = {}
        """With the names of their modules."""
        self.complete = True
        self._seen: set[types.CodeType] = set()
        self._collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}

    def note(self, frame: types.FrameType) -> None:
        """A function was called."""
        code = frame.f_code
        if code in self._seen:
            return
        module = frame.f_globals.get("__name__")
        if _of_tools(module) or code.co_filename.startswith(_GENERATED):
            self._seen.add(code)
        elif not self._beside(frame):
            self._seen.add(code)
            self.codes[code] = str(module)

    def _beside(self, frame: types.FrameType | None) -> bool:
        """Whether a call is part of an import or of a garbage collection, which the trace has nothing of."""
        while frame is not None:
            if frame.f_code in self._collecting or frame.f_globals.get("__name__") == "importlib._bootstrap":
                return True
            frame = frame.f_back
        return False


def _of_tools(module: Any) -> bool:
    """Whether a module is of what torch and Turret are made with, whose code is the same for every program."""
    return is_library(module) or (isinstance(module, str) and module.partition(".")[0].startswith(_TOOLS))


_TOOLS = (
    "sympy", "mpmath", "numpy", "networkx", "attr", "pluggy", "opt_einsum", "triton", "bytecode", "filelock",
    "namedtuple_",
)  # fmt: skip
_GENERATED = ("<attrs generated ", "<eval_with_key>", "<turret ")
"""Beginnings of the names of files that code has which is generated from what keys cover."""


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Leave what runs inside out of the record: it has no say in what is traced."""
    profile = sys.getprofile()
    if getattr(profile, "__module__", None) != __name__:
        yield
        return
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profile)


@contextlib.contextmanager
def recorded() -> Iterator[ExecutedCode]:
    """Record the functions that this thread calls; a profiler that is there goes on."""
    record = ExecutedCode()
    before = sys.getprofile()
    if before is not None and not isinstance(before, types.FunctionType | types.MethodType):
        record.complete = False  # one written in C, which cannot be called beside another
        yield record
        return

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            record.note(frame)
        if before is not None:
            before(frame, event, argument)

    sys.setprofile(profile)
    try:
        yield record
    finally:
        sys.setprofile(before)
