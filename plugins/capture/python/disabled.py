"""Functions that torch's own compiler keeps itself off: there is no need for that here."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def kept_from_torchs_compiler(function: Any) -> Any:
    """The function of an optimizer in a wrapper that keeps torch's own compiler off it; None for any other function.

    That compiler makes these wrappers when it is loaded (``TorchPatcher``), for reasons of its own; what the program
    itself disabled has no such message.
    """
    original = getattr(function, "_torchdynamo_orig_callable", None)
    message = str(getattr(function, "_torchdynamo_disable_msg", None) or "")
    if not str(getattr(original, "__module__", "")).startswith("torch.optim."):
        return None
    return original if message.startswith(_REASONS_OF_TORCH) else None


_REASONS_OF_TORCH = ("optimizer <class ", "don't trace into fused optimizer")


def without_wrapper(target: Callable) -> Callable:
    """A callable to be compiled: of a method of an optimizer in such a wrapper the method itself."""
    if type(target) is types.MethodType:
        original = kept_from_torchs_compiler(target.__func__)
        return target if original is None else types.MethodType(original, target.__self__)
    return target
