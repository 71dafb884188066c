"""Operations by family; importing this package fills ``OPERATIONS``."""

from __future__ import annotations

from turret.testing.corpus.operations import (  # noqa: F401
    complexes,
    contractions,
    indexing,
    inplace,
    layers,
    numbers,
    pointwise,
    reductions,
    views,
)
from turret.testing.corpus.operations.registry import FAMILIES, OPERATIONS, Operation, operation, table

__all__ = ["FAMILIES", "OPERATIONS", "Operation", "operation", "table"]
