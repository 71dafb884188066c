"""What the host computes of numbers that depend on data, as nodes of a graph call it; it needs no symbols.

``turret::host_math`` is a function of Python's ``math``, or ``round`` to digits, of floats in tensors.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("host_math(str function, Tensor[] numbers) -> Tensor")


def _host_math(function: str, numbers: list[torch.Tensor]) -> torch.Tensor:
    """What a function of ``math`` gives for numbers in tensors of one float64: torch's own may round otherwise."""
    given = [number.item() for number in numbers]
    found = round(given[0], int(given[1])) if function == "round" else getattr(math, function)(*given)
    return numbers[0].new_full((), found)


_library.impl("host_math", _host_math, "CompositeExplicitAutograd")
torch.library.register_fake("turret::host_math", lambda function, numbers: numbers[0].new_empty(()), lib=_library)

host_math = torch.ops.turret.host_math.default


def float_power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``, of which one is a float or the exponent is negative, and which is no complex number.

    The operator of torch's symbols asserts that the base is not negative.
    """
    if isinstance(base, (torch.SymInt, torch.SymFloat)):
        return torch.sym_float(base).__float_pow__(torch.sym_float(exponent))
    return base**exponent


def element(tensor: torch.Tensor, key: tuple[Any, ...]) -> torch.Tensor:
    """``tensor[key]`` of a key of ints, slices, None and an ellipsis; an int may be a symbol that depends on data.

    Raises IndexError for more indices than the tensor has dimensions.
    """
    taken = 0
    for part in key:
        if part is not None and part is not Ellipsis:
            taken += 1
    if taken > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}")
    left, dim = tensor.dim() - taken, 0
    for part in key:
        if part is Ellipsis:
            dim += left
        elif part is None:
            tensor = tensor.unsqueeze(dim)
            dim += 1
        elif isinstance(part, slice):
            tensor = tensor[(*[slice(None)] * dim, part)]
            dim += 1
        else:
            tensor = tensor.select(dim, part)
    return tensor
