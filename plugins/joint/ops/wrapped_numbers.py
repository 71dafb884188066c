"""Calls of ops on numbers alone: torch hands the tensors that it makes of a program's numbers as numbers."""

from __future__ import annotations

from typing import Any

import torch

from turret.graph.fakes.layouts import tensors_in
from turret.torch_compat.dispatch import no_dispatch

NUMBERS = frozenset((bool, int, float, complex))
"""Types of numbers with known values."""


def value_of_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an op gives that takes tensors and got numbers alone, as a tensor with values; else ``NotImplemented``.

    The formula of a gradient conjugates or casts a factor of the program (``aten._conj(1+2j)``), and programs call
    ``aten.div(512.0, 100)``.  Torch makes tensors without dimensions of such numbers that count for less than others,
    so that two floats give the default dtype.  Beside a tensor, too, they do, so calls with both are left as they are.
    """
    schema = func._schema
    if not isinstance(schema.arguments[0].type, torch.TensorType) or schema.is_mutable or tensors_in(args):
        return NotImplemented
    if torch.Tag.nondeterministic_seeded in func.tags:
        return NotImplemented
    with no_dispatch():
        made = func(*args, **kwargs)
        return made.resolve_conj().resolve_neg() if isinstance(made, torch.Tensor) else NotImplemented
