"""The native frame hook, and what keeps captured code."""

from __future__ import annotations

import enum
import functools
import opcode
import os
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turret.storage.extension import Extension
from turret.torch_compat.frames import frame_hook as torchs_frame_hook
from turret.torch_compat.frames import skip_code


class FrameKind(enum.IntEnum):
    """What ``mark`` says of a code object; ``classify`` callbacks return one of them, but for the first."""

    UNKNOWN = 0
    SKIP = 1
    CAPTURE = 2
    SKIP_CALLEES = 3


EXTENSION = Extension(
    Path(__file__).with_name("frame_hook.cpp"),
    "Turret's frame capture",
    (f"-DRETURN_VALUE_OPCODE={opcode.opmap['RETURN_VALUE']}",),
    enums=(FrameKind,),
)

set_torchs_callback = torchs_frame_hook.set_eval_frame
"""Sets what torch's own frame hook calls in this thread and returns what it called before; None keeps it off."""


def keep_torch_off(code: types.CodeType) -> None:
    """Tell torch's own frame hook to leave frames of a code object alone."""
    skip_code(code)


_DISABLED = "_torchdynamo_disable"


def keep_torch_out(function: Callable[..., Any]) -> None:
    """Tell torch's frame hook to leave a function's frames alone, and torch's compiled autograd its calls."""
    assert isinstance(function, types.FunctionType)
    keep_torch_off(function.__code__)
    setattr(function, _DISABLED, True)


captures: weakref.WeakSet[Any] = weakref.WeakSet()
"""What keeps captured code, for ``turret.reset``; each has a method ``forget``."""


def forget_captures() -> None:
    """Drop all captured code; callables are captured anew when next called."""
    for kept in list(captures):
        kept.forget()


@functools.cache
def load() -> Any:
    """The extension module, built where there is none for this interpreter.

    Raises ``CodegenError`` with what is missing (a C++ compiler, the Python headers) and how to get it.
    """
    module = EXTENSION.load()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=module.after_fork)
    return module


def invocations() -> int:
    """How many calls of compiled functions began in this process on threads that were in none."""
    return int(load().invocations())
