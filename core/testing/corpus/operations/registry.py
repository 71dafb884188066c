"""The table of operations that programs are made of: a short drawing function an entry, by family."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from turret.testing.corpus.builder import Builder, Features

Draw = Callable[[Builder], object]


@attrs.frozen
class Operation:
    """``draw(builder)`` picks operands and adds a statement, or raises ``Declined``."""

    name: str
    family: str
    draw: Draw


OPERATIONS: dict[str, Operation] = {}

FAMILIES: dict[str, int] = {
    "pointwise": 34,
    "view": 18,
    "inplace": 12,
    "reduction": 14,
    "indexing": 8,
    "combine": 5,
    "contraction": 5,
    "layer": 6,
    "create": 3,
    "random": 2,
    "number": 60,
    "complex": 2,
    "checkpoint": 1,
}
"""Families of operations with their weights."""


def operation(name: str, family: str) -> Callable[[Draw], Draw]:
    """Register a drawing function; raises ``ValueError`` for a name that is taken or an unknown family."""
    if name in OPERATIONS or family not in FAMILIES:
        raise ValueError(f"operation {name!r} of family {family!r}: the name is taken or the family unknown")

    def register(draw: Draw) -> Draw:
        OPERATIONS[name] = Operation(name, family, draw)
        return draw

    return register


def table(features: Features, layouts: int = 1) -> list[tuple[list[Operation], int]]:
    """Operations that ``features`` allow, by family, with the family's weight; ``layouts``: kinds of calls."""
    conditional = {
        "inplace": features.mutation,
        "random": features.random,
        "number": layouts > 1,
        "complex": features.complex,
        "checkpoint": features.settings,
    }
    rows = []
    for family, weight in FAMILIES.items():
        if (features.families and family not in features.families) or not conditional.get(family, True):
            continue
        allowed = [op for op in OPERATIONS.values() if op.family == family and op.name not in features.skip]
        if allowed:
            rows.append((allowed, weight))
    return rows


# -- predicates on operands that the families share ---------------------------------------------------------------


def is_float(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point


def is_wide_float(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


def is_number(tensor: Tensor) -> bool:
    return tensor.dtype != torch.bool


def is_integer(tensor: Tensor) -> bool:
    return not tensor.dtype.is_floating_point


def has_dims(low: int, high: int = 9) -> Callable[[Tensor], bool]:
    return lambda tensor: low <= tensor.dim() <= high


def both(*predicates: Callable[[Tensor], bool]) -> Callable[[Tensor], bool]:
    return lambda tensor: all(predicate(tensor) for predicate in predicates)


def dim_of(builder: Builder, name: str) -> int:
    """A dimension of a live tensor, counted from the front or from the back."""
    dims = builder[name].dim()
    if not dims:
        return builder.integer(-1, 0)
    return builder.integer(-dims, dims - 1)
