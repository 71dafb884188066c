"""Turret: the torch.compile stack as a pipeline of swappable stages.

Names load on first use, so that ``import turret`` costs next to nothing.  In a subinterpreter the import is refused.
"""

from __future__ import annotations

import importlib
from typing import Any

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
