"""Checks that operations of eager make of the values of their tensors before they call any kernel.

Torch leaves them out where a tensor is fake, so that a trace would hold calls which eager refuses.  Here they become
assertions, which are checked when the graph runs.  Kernels' own checks are in ``turret.graph.op_traits``.

Under functorch's transforms torch leaves them out for real tensors, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from turret.errors import UnsupportedError
from turret.hooks.devices import uses_host_kernels
from turret.torch_compat.dispatch import innermost_transform

aten = torch.ops.aten


def _one_hot(input: torch.Tensor, num_classes: Any = -1) -> Any:
    """A comparison with all classes; torch's own one checks them since 2.13 alone."""
    if input.dtype is not torch.int64 or guard_or_false(num_classes < 0):
        return NotImplemented
    if guard_or_false(num_classes == 0) and input.numel() == 0:
        raise UnsupportedError("eager refuses one_hot of no elements into no classes")
    aten._assert_async.msg((input >= 0).all(), "one_hot: Class values must be non-negative.")
    aten._assert_async.msg((input < num_classes).all(), "one_hot: Class values must be smaller than num_classes.")
    classes = torch.arange(num_classes, dtype=input.dtype, device=input.device)
    return (input.unsqueeze(-1) == classes).to(torch.int64)


def _quantile(input: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's own, which gathers: what is at most one step out of range would be the last element, or the first."""
    if isinstance(q, torch.Tensor) and uses_host_kernels(input.device):
        aten._assert_async.msg(((q >= 0) & (q <= 1)).all(), "quantile() q values must be in the range [0, 1]")
    return NotImplemented


_CHECKED: dict[str, Callable[..., Any]] = {"one_hot": _one_hot, "quantile": _quantile, "nanquantile": _quantile}


def with_value_checks(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of the named call after its checks; ``NotImplemented`` where torch's own way is to be taken then."""
    check = _CHECKED.get(name.removeprefix("aten::"))
    if check is None or innermost_transform():
        return NotImplemented
    if "self" in kwargs:
        kwargs = {"input" if k == "self" else k: v for k, v in kwargs.items()}
    return check(*args, **kwargs)
