"""Functions that torch's own compiler keeps itself off: there is no need for that here."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def kept_from_torchs_compiler(function: Any) -> Any:
    """The function in a wrapper that keeps torch's own compiler off it, for reasons of its own; None for any other.

    That compiler makes such wrappers of optimizers when it is loaded (``TorchPatcher``), with a message that what the
    program itself disabled has not.  Constructors of wrapper tensors that ``torch.export`` may record are disabled by
    convention: Dynamo calls the class in the graph.
    """
    original = getattr(function, "_torchdynamo_orig_callable", None)
    if (getattr(original, "__module__", ""), getattr(original, "__qualname__", "")) == _EXPORTABLE_CONSTRUCTOR:
        return original
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
_EXPORTABLE_CONSTRUCTOR = "torch._export.wrappers", "mark_subclass_constructor_exportable_experimental.<locals>.wrapper"
_REASONS_OF_TORCH = ("optimizer <class ", "don't trace into fused optimizer")


def without_wrapper(target: Callable) -> Callable:
    """A callable to be compiled: of a method of an optimizer in such a wrapper the method itself."""
    if type(target) is types.MethodType:
        original = kept_from_torchs_compiler(target.__func__)
        return target if original is None else types.MethodType(original, target.__self__)
    return target
