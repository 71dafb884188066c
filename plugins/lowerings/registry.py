"""The table of built-in lowerings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turret.lowering import Lowering
from turret.surface import resolve

LOWERINGS: dict[Any, Lowering] = {}
"""``OpOverload -> lowering``; filled by the modules of this folder."""


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of ops named as in ``turret.surface`` (those this torch has)."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            op = resolve(name)
            if op is not None:
                LOWERINGS[op] = function
        return function

    return register
