"""Calls that are given a tensor to write their result to (``out=``), which for fake tensors torch takes another way.

In eager the dtype of that tensor is the one that a sum is computed in, where none is given; for fake tensors the result
is computed as without it, and converted: the sum of 0.6 and 0.6 in a tensor of integers is 0 in eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_COMPUTED_IN_RESULT = frozenset(("sum", "nansum", "prod", "mean", "cumsum", "cumprod"))


def with_given_result(name: str, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of the named call in the tensor that it is given; ``NotImplemented`` where torch's way serves."""
    out = kwargs.get("out")
    if not isinstance(out, torch.Tensor):
        return NotImplemented
    name = name.removeprefix("aten::")
    if name in _COMPUTED_IN_RESULT and kwargs.get("dtype") is None:
        return function(*args, **kwargs | {"dtype": out.dtype})
    if name == "logsumexp":
        return _logsumexp(*args, **kwargs)
    if name == "linalg_matrix_rank":  # torch counts singular values of fake tensors without writing the number
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        return torch.add(function(*args, **rest), 0, out=out)
    return NotImplemented


def _logsumexp(
    x: torch.Tensor, dim: int | tuple[int, ...] = (), keepdim: bool = False, *, out: torch.Tensor
) -> torch.Tensor:
    """Exponentials are summed in the result's dtype, and their logarithm is taken in it."""
    if x.numel() == 0 or x.is_complex() or x.dtype == out.dtype:
        return NotImplemented
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    greatest = x.amax(dim, keepdim=True)
    greatest = torch.where(greatest.abs() == torch.inf, 0, greatest)
    shown = greatest if keepdim else greatest.squeeze(dim)
    summed = (x - greatest).exp().sum(dim, keepdim=keepdim, dtype=out.dtype).log()
    return torch.add(summed.add_(shown), 0, out=out)
