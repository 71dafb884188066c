"""The hook: a callable that runs its target with frames captured."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from turret.errors import CaptureError, warn
from turret.frames.class_members import find_in_mro
from turret.frames.frame_hook import keep_torch_off
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import CapturedGraph
from turret.plugins.capture.dispatching.dispatch import Settings, enter, holds_tensors, quickest_enter
from turret.plugins.capture.python.disabled import without_wrapper

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
    given = getattr(target, "turret_target", target)
    target = with_a_frame(given)
    root = root_code(target)
    settings = Settings(context, compile_graph, fullgraph, dynamic, is_bound=not isinstance(target, types.FunctionType))
    owner = getattr(target, "__self__", target)
    if isinstance(owner, torch.nn.Module):
        settings.share(owner, root)
    elif target is given and type(target) is types.FunctionType and settings.storing is not None:
        settings.share_code(target)

    module = module_called(target) if fullgraph else None
    inner: Settings | None = None
    run: Callable[..., Any]

    def watched(settings: Settings, target: Callable, root: types.CodeType, args: tuple, kwargs: dict) -> Any:
        """The call, until something was captured or it is known that nothing is."""
        nonlocal run
        result = enter(settings, target, root, args, kwargs)
        if settings.graphs or report_nothing_captured(settings, target, (args, kwargs, result)):
            run = quickest_enter()
        return result

    run = watched

    def compiled(*args: Any, **kwargs: Any) -> Any:
        nonlocal inner
        if module is not None and module._backward_hooks and (forward := forward_under_hooks(module)) is not None:
            inner = inner or Settings(context, compile_graph, fullgraph, dynamic, is_bound=True)
            return enter(inner, target, forward, args, kwargs)
        return run(settings, target, root, args, kwargs)

    keep_torch_off(watched.__code__)
    keep_torch_off(compiled.__code__)
    updated = functools.update_wrapper(compiled, target) if isinstance(target, types.FunctionType) else compiled
    updated.turret_settings = settings  # type: ignore[attr-defined]
    updated.turret_target = target  # type: ignore[attr-defined]
    updated._torchdynamo_disable = True  # type: ignore[attr-defined]
    return updated


def report_nothing_captured(settings: Settings, target: Any, values: tuple) -> bool:
    """Warn where tensors were computed with (``values`` hold some) and nothing was captured; whether it did so."""
    if getattr(target, "_torchdynamo_disable", False) or not works_on_tensors(target, values):
        return False
    if settings.waits:
        settings.waits = False
        return False
    reason = settings.obstacle
    if not reason and not settings.asked and root_code(target).co_flags & _SUSPENDABLE:
        reason = "it is a generator function or a coroutine, whose frames are not captured"
    if not reason:
        return False
    message = f"nothing of {name_of(target)} was captured, and it runs eagerly: {reason}"
    settings.context.emit("fallback", stage="capture", name=name_of(target), message=message)
    warn(message)
    return True


_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def works_on_tensors(target: Any, values: tuple) -> bool:
    """Whether a call has to do with tensors, or with what holds them: modules and optimizers."""
    if isinstance(target, types.FunctionType):
        used = inspect.getclosurevars(target)
        values = (*values, *used.nonlocals.values(), *used.globals.values())
    return holds_tensors((*values, getattr(target, "__self__", target)), depth=4)


def name_of(target: Any) -> str:
    """A callable's name for people: of a module's call, the module's class."""
    module = module_called(target)
    return (
        type(module).__qualname__ if module is not None else getattr(target, "__qualname__", type(target).__qualname__)
    )


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
    """``target``, or a function that calls it where its own frame is none to be captured.

    That is so for what is written in C (``torch.sin``), and for functions of torch: what capture knows of those, it
    knows of calls of them (``torch.vmap(f)``).
    """
    target = without_wrapper(target)
    try:
        function = root_function(target)
    except CaptureError:
        pass
    else:
        if not str(function.__globals__.get("__name__")).startswith(_KNOWN_BY_CALLS):
            return target
    called = target

    def call(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    call.__name__ = call.__qualname__ = getattr(target, "__name__", type(target).__name__)
    return call


_KNOWN_BY_CALLS = (
    "torch._functorch.",
    "torch.autograd.function",
    "torch._compile",
    "torch._higher_order_ops.",
    "torch.nn.functional",
    "torch.functional",
    "torch._ops",
)


def root_code(target: Callable) -> types.CodeType:
    """The code object whose frame a call of ``target`` starts."""
    return root_function(target).__code__


def root_function(target: Callable) -> types.FunctionType:
    """The function whose frame a call of ``target`` starts.  Raises ``CaptureError`` where there is none."""
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
    return found
