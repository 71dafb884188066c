"""``turret.compile`` and its neighbours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from turret import config as configuration
from turret import plugin_manager
from turret.errors import OptionError
from turret.module import CompiledModule, wrap_module
from turret.pipeline import Compiler, create_context

Backend = str | Callable


def compile(
    model: Callable | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Backend = "turret",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    plugins: Sequence[Any] = (),
    disable: bool = False,
) -> Callable:
    """Compile a function, a method or a module; arguments mean what they mean to ``torch.compile``.

    ``fullgraph``: raise where the program cannot be captured as one graph.  ``dynamic``: None makes a dimension
    dynamic once it was seen to change, True from the start, False never.  ``backend``: ``"turret"``, or any
    backend of torch.compile (a name or a function of a graph and example inputs).  ``mode``, ``options``: see
    ``turret.list_mode_options`` and ``turret.list_options``.  ``plugins``: objects, modules or dotted names
    that hold for this callable alone, asked before all others.  Without ``model``, returns a decorator.

    Raises ``OptionError`` for an unknown mode or option and ``PluginError`` for a plugin that does not fit.
    """
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
            plugins=plugins, disable=disable,
        )  # fmt: skip
    if not callable(model):
        raise OptionError(f"turret.compile was given {model!r}, expected a function, a method or a module")
    if isinstance(model, CompiledModule):
        model = model._turret_original
    again = functools.partial(
        compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
        plugins=plugins, disable=disable,
    )  # fmt: skip
    if disable:
        return model
    if isinstance(model, torch.nn.Module):
        call = _compile_callable(model.__call__, fullgraph, dynamic, backend, mode, options, plugins)
        return wrap_module(model, call, again)
    return _compile_callable(model, fullgraph, dynamic, backend, mode, options, plugins)


def _compile_callable(
    target: Callable,
    fullgraph: bool,
    dynamic: bool | None,
    backend: Backend,
    mode: str | None,
    options: Mapping[str, Any] | None,
    plugins: Sequence[Any],
) -> Callable:
    if backend != "turret":
        given = {"mode": mode} if mode is not None else {"options": dict(options)} if options else {}
        return torch.compile(target, backend=backend, fullgraph=fullgraph, dynamic=dynamic, **given)
    config = configuration.resolve(mode, options)
    manager = plugin_manager.create(tuple(plugins)) if plugins else plugin_manager.default_manager()
    context = create_context(config, manager)
    captured = manager.hook.turret_capture(
        context=context,
        target=target,
        compile_graph=Compiler(manager, config),
        fullgraph=fullgraph,
        dynamic=dynamic,
    )
    if captured is None:
        raise OptionError("no capture plugin took the callable; `turret plugins` lists those registered")
    return captured


def reset() -> None:
    """Forget all compiled code in this process; callables compile again when next called."""
    torch.compiler.reset()


def disable(fn: Callable | None = None, *, recursive: bool = True) -> Callable:
    """Mark a function so that compiled code calls it as plain Python."""
    return torch.compiler.disable(fn, recursive=recursive)


def is_compiling() -> bool:
    """True while a program is being captured (and folded to True in the captured program)."""
    return torch.compiler.is_compiling()


def list_options() -> dict[str, str]:
    """Every option with its default and meaning."""
    return configuration.list_options()


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Options that a mode sets; without a mode, those of every mode by name."""
    return configuration.list_mode_options(mode)
