"""The built-in ``turret_decompositions`` hook: torch's tables and Turret's, down to the core op set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turret.hooks.config import Option
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """Whose random numbers are drawn."""
    doc = "draw random numbers with eager's own kernels, in eager's order"
    return (Option(name="fallback_random", default=False, doc=doc),)


@hookimpl
def turret_decompositions(context: CompileContext) -> Mapping[Any, Callable | None]:
    """See ``table.decomposition_table``; the option ``fallback_random`` keeps eager's random ops."""
    from turret.plugins.decompositions.table import decomposition_table

    return decomposition_table(bool(getattr(context.config, "fallback_random", False)))
