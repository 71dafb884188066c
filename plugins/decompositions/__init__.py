"""The built-in ``turret_decompositions`` hook: torch's tables and Turret's, down to the closed surface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turret.hookspecs import hookimpl


@hookimpl
def turret_decompositions(context: Any) -> Mapping[Any, Callable | None]:
    """See ``table.decomposition_table``; the option ``fallback_random`` keeps eager's random ops."""
    from turret.plugins.decompositions.table import decomposition_table

    return decomposition_table(bool(getattr(context.config, "fallback_random", False)))
