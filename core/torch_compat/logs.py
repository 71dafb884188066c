"""Torch's own logs: which are switched on, and what they would say of programs that Turret compiles."""

from __future__ import annotations

import torch._logging._internal
import torch._subclasses.fake_tensor

FAKE_TENSOR_LOGGER = torch._subclasses.fake_tensor.log
"""Says, with a traceback, that an operation failed on fake tensors, though the program may do so by intent."""


def enabled_torch_logs() -> set[str]:
    """The artifacts that ``TORCH_LOGS`` or ``torch._logging.set_logs`` switched on."""
    return set(torch._logging._internal.log_state.artifact_names)
