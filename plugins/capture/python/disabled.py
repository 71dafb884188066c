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


def disabled_original(function: types.FunctionType) -> types.FunctionType | None:
    """The function that the program disabled, of one that has no other marks; None for others."""
    if function.__dict__.get(DISABLED) is not True or not function.__dict__.keys() <= _MARKS:
        return None
    original = function.__dict__.get(ORIGINAL, function)
    return original if type(original) is types.FunctionType and kept_from_torchs_compiler(function) is None else None


DISABLED, ORIGINAL = "_torchdynamo_disable", "_torchdynamo_orig_callable"
"""Attributes of disabled functions: that they are, and what the function in the wrapper is."""
_MARKS = frozenset(
    {
        DISABLED, ORIGINAL, "__wrapped__", "_torchdynamo_disable_msg", "_torchdynamo_wrapper_id",
        "_torchdynamo_disable_recursive",
    }
)  # fmt: skip
_REASONS_OF_TORCH = ("optimizer <class ", "don't trace into fused optimizer")


def without_wrapper(target: Callable) -> Callable:
    """A callable to be compiled: of a method of an optimizer in such a wrapper the method itself."""
    if type(target) is types.MethodType:
        original = kept_from_torchs_compiler(target.__func__)
        return target if original is None else types.MethodType(original, target.__self__)
    return target
