"""``turret.compile`` and its neighbours."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from turret.api.arguments import check_arguments, check_model
from turret.api.module import CompiledModule, wrap_module
from turret.api.torch_options import is_compiling_off, translated
from turret.errors import OptionError, StageError, TurretError, warn
from turret.pipeline.gc_pause import full_gc_paused
from turret.storage.fork_safety import compiling

Backend = str | Callable[..., Any]

OWN_BACKENDS = ("eager", "aot_eager")
"""Names of ``torch.compile``'s backends that run on Turret's own capture here, beside functions."""


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Backend = "turret",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    plugins: Sequence[Any] = (),
    disable: bool = False,
) -> Callable[..., Any]:
    """Compile a function, a method or a module; arguments mean what they mean to ``torch.compile``.

    Args:
        model: what to compile; left out, the result is a decorator.
        fullgraph: raise ``CaptureError`` where the program cannot be captured as one graph.
        dynamic: None makes a dimension dynamic once it was seen to change, True from the start, False never.
        backend: ``"turret"``; a function that makes a callable of a captured graph and example inputs; ``"eager"``
            (graphs run as captured); ``"aot_eager"`` (forward and backward are traced, and run call by call); or
            another name that torch.compile knows.
        mode: a name of ``turret.list_mode_options``; one for a function as backend goes to it.
        options: values by name (``turret.list_options``); those for a function as backend go to it.
        plugins: objects, modules or dotted names that hold for this callable alone, asked before all others.
        disable: give ``model`` back as it is; so do ``TORCH_COMPILE_DISABLE=1`` and ``TORCHDYNAMO_DISABLE=1``.

    Returns:
        What is called in place of ``model``: a module for a module, with the same parameters and attributes.

    Raises:
        OptionError: for an unknown mode, option or backend.
        PluginError: for a plugin that does not fit.
        CacheError: for a cache folder that was named and cannot be used.
    """
    check_arguments(
        fullgraph=fullgraph, dynamic=dynamic, disable=disable, backend=backend, mode=mode, options=options,
        plugins=plugins,
    )  # fmt: skip
    again: Callable[..., Any] = functools.partial(
        compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
        plugins=plugins, disable=disable,
    )  # fmt: skip
    if model is None:
        return again
    check_model(model)
    if disable or is_compiling_off():
        return model
    if isinstance(model, CompiledModule):
        model = model._turret_original
    # A module's own __call__ runs hooks around its forward; it is looked up on the class, as Python does.
    target = model.__call__ if isinstance(model, torch.nn.Module) else model
    if backend in ("turret", None):
        with compiling.here(), full_gc_paused():
            call = _compile_callable(target, fullgraph, dynamic, mode, options, plugins)
    elif isinstance(backend, str) and backend not in OWN_BACKENDS:
        call = _compile_elsewhere(model, fullgraph, dynamic, backend, mode, options, plugins)
    else:
        with compiling.here(), full_gc_paused():
            call = _compile_by_backend(target, fullgraph, dynamic, backend, mode, options, plugins)
    return wrap_module(model, call, again) if isinstance(model, torch.nn.Module) else call


def _compile_callable(
    target: Callable[..., Any],
    fullgraph: bool,
    dynamic: bool | None,
    mode: str | None,
    options: Mapping[str, Any] | None,
    plugins: Sequence[Any],
) -> Callable[..., Any]:
    # Stages import sympy; a program that names turret.compile and never calls it need not wait for that.
    from turret.frames.filtering.guard_filter import taken_from
    from turret.hooks import plugin_manager
    from turret.pipeline.driver import Compiler
    from turret.pipeline.stage_calls import create_context
    from turret.storage.artifact_cache import ArtifactCache

    options, own = taken_from(options)
    everyone = (*plugins, *own)
    manager = plugin_manager.create(everyone) if everyone else plugin_manager.default_manager()
    config = plugin_manager.configure(manager, mode, translated(options, manager.options))
    if config.cache and config.cache_dir:
        ArtifactCache(config.cache_dir)
    context = create_context(config, manager)
    try:
        captured = manager.hook.turret_capture(
            context=context,
            target=target,
            compile_graph=Compiler(manager, config),
            fullgraph=fullgraph,
            dynamic=dynamic,
        )
    except TurretError:
        raise
    except Exception as error:
        plugin = plugin_manager.plugin_of(manager, "turret_capture", error)
        failed = StageError("capture", plugin, f"{type(error).__name__}: {error}")
        if config.on_error == "raise":
            raise failed from error
        context.emit("fallback", stage="capture", message=str(failed))
        warn(f"Turret leaves {target!r} as it is: {failed}")
        return target
    if captured is None:
        raise OptionError("no capture plugin took the callable; `turret plugins` lists those registered")
    compiled: Callable[..., Any] = captured
    return compiled


def _compile_by_backend(
    target: Callable[..., Any],
    fullgraph: bool,
    dynamic: bool | None,
    backend: Backend,
    mode: str | None,
    options: Mapping[str, Any] | None,
    plugins: Sequence[Any],
) -> Callable[..., Any]:
    """Capture with Turret, and have graphs run eagerly or by what a function makes of them.

    Modes and options are Turret's, unless a function is the backend: then they are its own, as in torch.compile.
    """
    from turret.api import backends

    if isinstance(backend, str):
        return _compile_callable(target, fullgraph, dynamic, mode, options, (*plugins, backends.named(backend)))
    plugin = backends.of_function(backend, _own_keywords(backend, mode, options))
    return _compile_callable(target, fullgraph, dynamic, None, None, (*plugins, plugin))


def _own_keywords(backend: Backend, mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The mode or the options of a backend that has its own, as it is given them."""
    if mode is not None and options:
        raise OptionError(f"backend={backend!r} takes a mode or options, not both; given {mode!r} and {options!r}")
    return {"mode": mode} if mode is not None else {"options": dict(options)} if options else {}


def _compile_elsewhere(
    model: Callable[..., Any],
    fullgraph: bool,
    dynamic: bool | None,
    backend: str,
    mode: str | None,
    options: Mapping[str, Any] | None,
    plugins: Sequence[Any],
) -> Callable[..., Any]:
    """Compile with another backend that torch.compile knows by name, whose modes and options are its own."""
    from turret.hooks.config import nearest

    if plugins:
        raise OptionError(f"plugins are Turret's, and backend={backend!r} does not ask them; leave one of the two out")
    given = _own_keywords(backend, mode, options)
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        known = sorted({"turret", *OWN_BACKENDS, *known})
        raise OptionError(f"unknown backend {backend!r}{nearest(backend, known)}; known: {', '.join(known)}")
    try:
        return torch.compile(model, backend=backend, fullgraph=fullgraph, dynamic=dynamic, **given)
    except TypeError as error:
        raise OptionError(f"torch.compile does not take {model!r} with backend={backend!r}: {error}") from error


def reset() -> None:
    """Forget all compiled code in this process; callables compile again when next called."""
    from turret.frames import frame_hook

    if "torch._dynamo" in sys.modules:  # importing it takes a second, to forget nothing
        torch.compiler.reset()
    frame_hook.forget_captures()


def disable(fn: Callable[..., Any] | None = None, *, recursive: bool = True) -> Callable[..., Any]:
    """Mark a function so that compiled code calls it as plain Python."""
    disabled: Callable[..., Any] = torch.compiler.disable(fn, recursive=recursive)
    return disabled


def is_compiling() -> bool:
    """True while a program is being captured (and folded to True in the captured program)."""
    return torch.compiler.is_compiling()


def list_options(plugins: Sequence[Any] = ()) -> dict[str, str]:
    """Every option with its default and meaning: core's, those of the installed plugins, and of ``plugins``."""
    from turret.hooks import config as configuration
    from turret.hooks import plugin_manager

    manager = plugin_manager.create(tuple(plugins)) if plugins else plugin_manager.default_manager()
    return configuration.list_options(manager.options)


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Options that a mode sets; without a mode, those of every mode by name."""
    from turret.hooks import config as configuration

    return configuration.list_mode_options(mode)
