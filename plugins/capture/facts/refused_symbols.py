"""Operations that take a number and no symbol for it: what a failed call says, and which symbols it was given."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from turret.torch_compat.sizes import is_float_symbol
from turret.torch_compat.trees import pytree

_OF_SIZES = re.compile(r"symbolic (sizes|shapes|strides)|for customized tensor|contain only concrete integers|SymInt")
"""What torch's C++ says of tensors whose sizes are symbols (``TensorImpl.h``, ``ArrayRef`` of sizes) and of symbols
among arguments."""


def refuses_floats(error: BaseException | None) -> bool:
    """Whether an operation failed because of a float that is a symbol to it, and a constant of the call."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return any(map(is_float_symbol, error.cond.free_symbols))
    return isinstance(error, TypeError) and torch.SymFloat.__name__ in str(error)


def refuses_sizes(error: BaseException | None) -> bool:
    """Whether an operation failed because a size, a stride or an int is a symbol to it, and a constant of the call."""
    is_of_data = isinstance(error, GuardOnDataDependentSymNode)
    return isinstance(error, (RuntimeError, TypeError)) and not is_of_data and bool(_OF_SIZES.search(str(error)))


def symbols_in(arguments: Any, kind: type[torch.SymInt] | type[torch.SymFloat]) -> set[sympy.Symbol]:
    """The symbols in numbers of one kind (``torch.SymInt``, ``torch.SymFloat``) among arguments of a call, and in the
    layouts of its tensors."""
    found: set[sympy.Symbol] = set()
    for value in pytree.tree_leaves(arguments):
        is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
        numbers = (*value.shape, *value.stride(), value.storage_offset()) if is_strided else (value,)
        for number in numbers:
            if isinstance(number, kind):
                found |= number.node.expr.free_symbols
    return found
