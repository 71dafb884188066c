"""The table of lowerings written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turret.graph.op_set import resolve
from turret.ir.lowering import Lowering

LOWERINGS: dict[Any, Lowering] = {}
"""``OpOverload -> lowering``; filled by the modules of this folder."""


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of ops named as in ``turret.graph.op_set`` (those this torch has)."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            op = resolve(name)
            if op is not None:
                LOWERINGS[op] = function
        return function

    return register
