"""Calls that stay whole above autograd.

Torch registers decompositions of upsampling and shrinking under its Autograd key.  Where they apply, autograd
differentiates the decomposition: the gradient of a few gathers is a few scatters with colliding indices, many times
slower than the op's own backward, and that of ``x * 0`` is NaN where the op's own is 0.  Decompositions of Turret's
apply below autograd and meet the backward ops themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_WHOLE = ("interpolate", "upsample", "_upsample", "aten::upsample", "aten::_upsample")
_WHOLE += ("softshrink", "hardshrink", "aten::softshrink", "aten::hardshrink")


def _name(function: Any) -> str:
    if isinstance(function, torch._ops.OpOverload):
        return function._schema.name
    return getattr(function, "__name__", "")


_SIZES_NEED_PYTHON = torch.__version__ < "2.12"
"""Before 2.12 kernels ask for symbolic sizes of tensors through Python's dispatch as well."""


def _symbolic(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_symbolic, values))
    if isinstance(values, torch.Tensor):
        return _SIZES_NEED_PYTHON and _symbolic(tuple(values.shape))
    return isinstance(values, torch.SymInt | torch.SymFloat)


class WholeAboveAutograd(TorchFunctionMode):
    """Within it, upsampling and shrinking of tensors reach autograd's own kernels.

    Sizes and factors given as symbols need Python's dispatch, and so the decompositions.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _name(func).startswith(_WHOLE) and not _symbolic([*args, *kwargs.values()]):
            with torch._C._DisablePythonDispatcher():
                return func(*args, **kwargs)
        return func(*args, **kwargs)
