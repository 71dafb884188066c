"""The hook: a callable that runs its target with frames captured."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from turret.context import CompileContext
from turret.errors import CaptureError
from turret.frame_hook import keep_torch_off
from turret.hookspecs import hookimpl
from turret.plugins.capture.dispatch import Settings, enter
from turret.plugins.capture.values.classes import find_in_mro
from turret.products import CapturedGraph

CACHE_KEY = "turret.plugins.capture"
"""Names this plugin in keys of the graph cache: graphs do not depend on who captured them."""


@hookimpl
def turret_capture(
    context: CompileContext,
    target: Callable,
    compile_graph: Callable[[CapturedGraph], Callable],
    fullgraph: bool,
    dynamic: bool | None,
) -> Callable | None:
    """Capture calls of ``target`` frame by frame, where the option ``capture`` asks for it."""
    if context.config.capture != "turret":
        return None
    target = with_a_frame(getattr(target, "turret_target", target))
    root = root_code(target)
    settings = Settings(context, compile_graph, fullgraph, dynamic)

    module = module_called(target) if fullgraph else None
    inner: Settings | None = None

    def compiled(*args: Any, **kwargs: Any) -> Any:
        nonlocal inner
        if module is not None and module._backward_hooks and (forward := forward_under_hooks(module)) is not None:
            inner = inner or Settings(context, compile_graph, fullgraph, dynamic)
            return enter(inner, target, forward, args, kwargs)
        return enter(settings, target, root, args, kwargs)

    keep_torch_off(compiled.__code__)
    updated = functools.update_wrapper(compiled, target) if isinstance(target, types.FunctionType) else compiled
    updated.turret_settings = settings  # type: ignore[attr-defined]
    updated.turret_target = target  # type: ignore[attr-defined]
    updated._torchdynamo_disable = True  # type: ignore[attr-defined]
    return updated


def module_called(target: Any) -> torch.nn.Module | None:
    """The module whose call ``target`` is, or None."""
    if isinstance(target, types.MethodType) and target.__func__ is torch.nn.Module.__call__:
        target = target.__self__
    return target if isinstance(target, torch.nn.Module) else None


def forward_under_hooks(module: torch.nn.Module) -> types.CodeType | None:
    """The code of a module's ``forward`` where the call of the module registers old hooks of the backward pass.

    ``Module.register_backward_hook`` hooks the autograd node behind the result, which is none of a graph's operations:
    the forward is what is captured whole, and the call around it runs as Python.
    """
    forward = module.forward
    if module._is_full_backward_hook or not isinstance(forward, types.MethodType):
        return None
    return root_code(forward)


def with_a_frame(target: Callable) -> Callable:
    """``target``, or for a builtin (``torch.sin``), whose call runs no Python code, a function that calls it."""
    try:
        root_code(target)
    except CaptureError:
        called = target

        def call(*args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

        call.__name__ = call.__qualname__ = getattr(target, "__name__", type(target).__name__)
        return call
    return target


def root_code(target: Callable) -> types.CodeType:
    """The code object whose frame a call of ``target`` starts."""
    found: Any = target
    while not isinstance(found, types.FunctionType):
        if isinstance(found, types.MethodType):
            found = found.__func__
        elif isinstance(found, functools.partial):
            found = found.func
        elif isinstance(call := find_in_mro(type(found), "__call__")[1], types.FunctionType):
            found = call
        else:
            raise CaptureError(f"turret.compile was given {target!r}, whose call runs no Python code")
    return found.__code__
