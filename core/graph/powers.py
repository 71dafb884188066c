"""Powers with exponents that are symbols: autograd's own formula for their gradient does not take any."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


class _Power(torch.autograd.Function):
    """``base ** exponent``, of an exponent that is an int or a symbol for one."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, exponent: Any) -> Tensor:
        ctx.save_for_backward(base)
        ctx.exponent = exponent
        ctx.set_materialize_grads(False)
        power: Tensor = aten.pow.Tensor_Scalar(base, exponent)
        return power

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if gradients[0] is None:
            return None, None
        (base,) = ctx.saved_tensors
        if ctx.exponent == 0:
            return torch.zeros_like(base), None
        less = ctx.exponent - 1
        power = _Power.apply(base, less) if base.requires_grad else base.pow(less)  # type: ignore[no-untyped-call]
        return gradients[0] * (power * ctx.exponent).conj(), None


def power_with_gradient(name: str, args: Any) -> Any:
    """What a call of a function of torch by this name gives; ``NotImplemented`` where autograd's own formula does."""
    if name not in _NAMES or len(args) != 2 or not torch.is_grad_enabled():
        return NotImplemented
    base, exponent = args
    if not isinstance(base, Tensor) or not isinstance(exponent, torch.SymInt) or not base.requires_grad:
        return NotImplemented
    if not (base.is_floating_point() or base.is_complex()):
        return NotImplemented
    if name in _IN_PLACE:
        return base.copy_(_Power.apply(base.clone(), exponent))  # type: ignore[no-untyped-call]
    return _Power.apply(base, exponent)  # type: ignore[no-untyped-call]


_IN_PLACE = ("pow_", "ipow", "__ipow__")
_NAMES = ("pow", "__pow__", *_IN_PLACE)
