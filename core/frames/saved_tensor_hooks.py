"""The program's hooks on saved tensors (``save_on_cpu``, ``torch.utils.checkpoint``): which are in use, and whether an
exception is theirs."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from turret.torch_compat.autograd import top_saved_tensor_hooks


def raised_by_hook(error: BaseException) -> bool:
    """Whether the pack hook that autograd uses now has raised this, and no operation of a graph."""
    hooks = top_saved_tensor_hooks(False)
    if hooks is None:
        return False
    codes = {f.__code__ for f in _layers(hooks[0])}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _layers(function: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a call of ``function`` runs first: those that wrap it, and itself."""
    while function is not None:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, types.FunctionType):
            yield function
            function = getattr(function, "__wrapped__", None)
        else:
            call = inspect.getattr_static(type(function), "__call__", None)
            function = call if isinstance(call, types.FunctionType) else None


def enclosed(function: Any, name: str) -> Any:
    """What a function (or one that it wraps) holds in the closure variable ``name``; None where there is none."""
    for layer in _layers(function):
        for free, cell in zip(layer.__code__.co_freevars, layer.__closure__ or (), strict=True):
            if free == name:
                return cell.cell_contents
    return None
