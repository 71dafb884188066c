"""Calls of ops on numbers alone: torch hands the tensors that it makes of a program's numbers as numbers."""

from __future__ import annotations

from collections.abc import Callable
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


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def has_symbols(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether a number among the arguments of a call changes from call to call."""
    return any(isinstance(v, _SYMBOLS) for v in (*args, *(kwargs or {}).values()))


def numbers_as_tensors(func: Any, args: tuple[Any, ...], make: Callable[[Any, torch.dtype], Any]) -> tuple[Any, ...]:
    """The arguments of a call on numbers alone with tensors where the op takes those, which ``make`` makes; as they are
    where there is a tensor among them.

    All are of the type that such numbers have together.
    """
    wanted = [isinstance(a.type, torch.TensorType) for a in func._schema.arguments[: len(args)]]
    if tensors_in(args) or not wanted[0] or func._schema.is_mutable:
        return args
    numbers = [a for a, is_wanted in zip(args, wanted, strict=True) if is_wanted]
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    example = sum(kinds.get(type(n), type(n))(1) for n in numbers if type(n) not in (bool, torch.SymBool))
    dtype = torch.tensor(example if any(type(n) not in (bool, torch.SymBool) for n in numbers) else True).dtype
    return tuple(make(a, dtype) if is_wanted else a for a, is_wanted in zip(args, wanted, strict=True))
