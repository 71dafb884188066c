"""Turret: the torch.compile stack as a pipeline of swappable stages.

Names load on first use, so that ``import turret`` costs next to nothing.  In a subinterpreter the import is refused.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for tools that read types
    from torch.compiler import keep_tensor_guards_unsafe as keep_tensor_guards_unsafe
    from torch.compiler import skip_all_guards_unsafe as skip_all_guards_unsafe
    from torch.compiler import skip_guard_on_all_nn_modules_unsafe as skip_guard_on_all_nn_modules_unsafe
    from torch.compiler import skip_guard_on_globals_unsafe as skip_guard_on_globals_unsafe
    from torch.compiler import skip_guard_on_inbuilt_nn_modules_unsafe as skip_guard_on_inbuilt_nn_modules_unsafe

    from turret.api import cudagraphs as cudagraphs
    from turret.api.compile import compile as compile
    from turret.api.compile import disable as disable
    from turret.api.compile import is_compiling as is_compiling
    from turret.api.compile import list_mode_options as list_mode_options
    from turret.api.compile import list_options as list_options
    from turret.api.compile import reset as reset
    from turret.api.cudagraphs import cudagraph_mark_step_begin as cudagraph_mark_step_begin
    from turret.api.explain import explain as explain
    from turret.api.flat_calls import flat_inputs as flat_inputs
    from turret.api.stages import assemble as assemble
    from turret.api.stages import captured_graph as captured_graph
    from turret.api.stages import codegen as codegen
    from turret.api.stages import joint_graph as joint_graph
    from turret.api.stages import load as load
    from turret.api.stages import lower as lower
    from turret.api.stages import partition as partition
    from turret.api.stages import place as place
    from turret.api.stages import schedule as schedule
    from turret.api.stages import stage_graph as stage_graph
    from turret.errors import TurretError as TurretError
    from turret.errors import TurretWarning as TurretWarning
    from turret.frames.annotations import allow_in_graph as allow_in_graph
    from turret.frames.annotations import graph_break as graph_break
    from turret.frames.annotations import nested_compile_region as nested_compile_region
    from turret.frames.annotations import substitute_in_graph as substitute_in_graph
    from turret.frames.stances import set_stance as set_stance
    from turret.hooks.config import Option as Option
    from turret.hooks.context import cache_counts as cache_counts
    from turret.hooks.hookspecs import hookimpl as hookimpl
    from turret.plugins.observers.logs import set_logs as set_logs

_GUARD_FILTERS = (
    "keep_tensor_guards_unsafe",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
)
"""Ready-made values of the option ``guard_filter_fn``."""

_HOMES = {
    "allow_in_graph": "turret.frames.annotations",
    "assemble": "turret.api.stages",
    "cache_counts": "turret.hooks.context",
    "captured_graph": "turret.api.stages",
    "codegen": "turret.api.stages",
    "compile": "turret.api.compile",
    "cudagraph_mark_step_begin": "turret.api.cudagraphs",
    "cudagraphs": "turret.api.cudagraphs",
    "disable": "turret.api.compile",
    "explain": "turret.api.explain",
    "flat_inputs": "turret.api.flat_calls",
    "graph_break": "turret.frames.annotations",
    "is_compiling": "turret.api.compile",
    "joint_graph": "turret.api.stages",
    "list_mode_options": "turret.api.compile",
    "list_options": "turret.api.compile",
    "load": "turret.api.stages",
    "lower": "turret.api.stages",
    "nested_compile_region": "turret.frames.annotations",
    "partition": "turret.api.stages",
    "place": "turret.api.stages",
    "reset": "turret.api.compile",
    "schedule": "turret.api.stages",
    "set_stance": "turret.frames.stances",
    **dict.fromkeys(_GUARD_FILTERS, "torch.compiler"),
    "stage_graph": "turret.api.stages",
    "substitute_in_graph": "turret.frames.annotations",
    "set_logs": "turret.plugins.observers.logs",
    "hookimpl": "turret.hooks.hookspecs",
    "Option": "turret.hooks.config",
    "TurretError": "turret.errors",
    "TurretWarning": "turret.errors",
}

_MODULES = frozenset({"cudagraphs"})
"""Names that stand for their homes themselves."""

__all__ = sorted(_HOMES)


def _is_subinterpreter() -> bool:
    """Whether this is another interpreter than the process's first one; False where Python has no way to tell."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from 3.13 on, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


if _is_subinterpreter():
    raise ImportError(
        "turret cannot be imported in a subinterpreter: torch supports the main interpreter of a process alone, and "
        "crashes in others; import and call compiled code in the main interpreter, or in a process of its own",
        name=__name__,
    )


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turret' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
