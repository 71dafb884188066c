"""Torch's own hook on frame evaluation, which Turret's lives beside."""

from __future__ import annotations

import types

import torch

frame_hook = torch._C._dynamo.eval_frame
"""The native part of ``torch._dynamo``, which is loaded with torch: what it calls for a frame, and which it skips."""


def skip_code(code: types.CodeType) -> None:
    """Have the hook leave frames of a code object alone; torch 2.11 says it by a strategy, later ones by a function."""
    if hasattr(frame_hook, "skip_code"):
        frame_hook.skip_code(code)
    else:
        strategy = frame_hook._FrameExecStrategy(frame_hook._FrameAction.SKIP, frame_hook._FrameAction.DEFAULT)
        frame_hook.set_code_exec_strategy(code, strategy)
