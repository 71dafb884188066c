"""The native frame hook, and what keeps captured code."""

from __future__ import annotations

import enum
import functools
import opcode
import os
import types
import weakref
from pathlib import Path
from typing import Any

import torch

from turret.storage.extension import Extension


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

set_torchs_callback = torch._C._dynamo.eval_frame.set_eval_frame
"""Sets what torch's own frame hook calls in this thread and returns what it called before; None keeps it off."""


def keep_torch_off(code: types.CodeType) -> None:
    """Tell torch's own frame hook to leave frames of a code object alone."""
    hook = torch._C._dynamo.eval_frame
    if hasattr(hook, "skip_code"):
        hook.skip_code(code)
    else:
        strategy = hook._FrameExecStrategy(hook._FrameAction.SKIP, hook._FrameAction.DEFAULT)
        hook.set_code_exec_strategy(code, strategy)


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
    return load().invocations()
