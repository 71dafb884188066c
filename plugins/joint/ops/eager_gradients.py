"""Reductions whose gradient autograd writes in another way for fake tensors than for those that a program has.

Eager looks at the data: a product without zeros is divided by its factors, and the gradient of an extreme goes to what
equals it.  Fake tensors have no data, so that torch takes formulas for them that need none, and which differ where
there are NaN, infinities, or products that overflow in part.  The formulas here need none either and agree with
eager's.

Under functorch's transforms torch takes those same formulas for real tensors, and so does this room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.hooks.devices import uses_host_kernels
from turret.torch_compat.dispatch import innermost_transform

aten = torch.ops.aten


class _Extreme(torch.autograd.Function):
    """The maximum, minimum or median of all elements, which those that equal it share the gradient of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, op: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        value = op(x)
        ctx.save_for_backward(x, value)
        ctx.set_materialize_grads(False)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None:
            return None, None
        x, value = ctx.saved_tensors
        chosen = torch.where(value.isnan(), x.isnan(), x == value)
        return torch.where(chosen, gradient / chosen.sum(), torch.zeros((), dtype=x.dtype, device=x.device)), None


class _Product(torch.autograd.Function):
    """The product along a dimension, which is kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, alone: bool) -> torch.Tensor:
        value = aten.prod.dim_int(x, dim, True)
        ctx.save_for_backward(x, value)
        ctx.dim, ctx.alone = dim, alone
        ctx.set_materialize_grads(False)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None:
            return None, None, None
        x, value = ctx.saved_tensors
        return _gradient_of_product(gradient, x, value, ctx.dim, ctx.alone), None, None


def _gradient_of_product(
    gradient: torch.Tensor, x: torch.Tensor, value: torch.Tensor, dim: int, alone: bool
) -> torch.Tensor:
    """The gradient of ``value``, the product of ``x`` along ``dim``; ``alone`` says that there is one product only.

    Without a zero anywhere in ``x`` a factor's slope is the product divided by it, else the product of the others,
    which is zero wherever two of them are.  The way that is not taken is given ones, so that gradients of this gradient
    do not meet its infinities.
    """
    zeros = (x == 0).sum()
    some = zeros > 0
    one = torch.ones((), dtype=x.dtype, device=x.device)
    divided = torch.where(some, one, value) / torch.where(some, one, x)
    others = _product_of_others(torch.where(some, x, one), dim)
    result = gradient * torch.where(some, others, divided).conj()
    return torch.where(zeros > 1, torch.zeros_like(result), result) if alone else result


def _product_of_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """For each element, the product of those before it times the product of those behind it."""
    count = x.shape[dim]
    first = torch.ones_like(x.narrow(dim, 0, 1))
    before = torch.cat([first, x.narrow(dim, 0, count - 1)], dim).cumprod(dim)
    behind = torch.cat([first, x.narrow(dim, 1, count - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return before * behind


class _RunningProduct(torch.autograd.Function):
    """The products of all up to each element along a dimension."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        value = aten.cumprod.default(x, dim)
        ctx.save_for_backward(x, value)
        ctx.dim = dim
        ctx.set_materialize_grads(False)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None:
            return None, None
        x, value = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _gradient_of_running_product_with_history(gradient, x, ctx.dim), None
        return _gradient_of_running_product(gradient, x, value, ctx.dim), None


def _gradient_of_running_product(
    gradient: torch.Tensor, x: torch.Tensor, value: torch.Tensor, dim: int
) -> torch.Tensor:
    """The gradient of ``value``, the running product of ``x`` along ``dim``.

    Up to the first zero an element's slope is the sum of the products from it on, divided by it; that of the first zero
    is the product before it times the sum of the running products behind it, up to the next one; behind it, none has
    any.  So NaN behind a zero stay out of what is before it; before 2.13 torch's formula for fake tensors lets them in.
    """
    one, nothing = (make((), dtype=x.dtype, device=x.device) for make in (torch.ones, torch.zeros))
    is_zero = x == 0
    zeros = is_zero.cumsum(dim)
    whole, once = zeros == 0, zeros == 1
    is_first = is_zero & once
    weighted = torch.where(whole, value.conj() * gradient, nothing)
    divided = weighted.flip(dim).cumsum(dim).flip(dim) / torch.where(whole, x, one).conj()
    before = torch.where(whole, x, one).cumprod(dim).narrow(dim, x.shape[dim] - 1, 1)
    behind = torch.where(once & ~is_first, x, one).cumprod(dim)
    slope = before.conj() * (behind.conj() * torch.where(once, gradient, nothing)).sum(dim, keepdim=True)
    return torch.where(whole, divided, torch.where(is_first, slope, nothing))


def _gradient_of_running_product_with_history(gradient: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """The same where it is differentiated again: what is zero there has a slope, so that all products are made."""
    one, nothing = (make((), dtype=x.dtype, device=x.device) for make in (torch.ones, torch.zeros))
    x, gradient = x.movedim(dim, -1), gradient.movedim(dim, -1)
    factor = torch.arange(x.shape[-1], device=x.device)
    without = torch.where(factor.unsqueeze(-1) == factor, one, x.unsqueeze(-2)).cumprod(-1)
    slopes = torch.where(factor.unsqueeze(-1) <= factor, without, nothing).conj() * gradient.unsqueeze(-2)
    return slopes.sum(-1).movedim(-1, dim)


def _extreme(op: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def call(x: torch.Tensor) -> Any:
        return _Extreme.apply(x, op) if uses_host_kernels(x.device) else NotImplemented

    return call


def _product(
    x: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if dtype is not None and dtype != x.dtype:
        x = x.to(dtype)
    if x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    if dim is None:
        return _Product.apply(x.reshape(-1), 0, True).squeeze(0)
    value = _Product.apply(x, dim, False)
    return value if keepdim else value.squeeze(dim)


def _running_product(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is not None and dtype != x.dtype:
        x = x.to(dtype)
    if x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    return _RunningProduct.apply(x, dim)


_GRADIENTS: dict[str, Callable[..., Any]] = {
    "max": _extreme(aten.max.default),
    "min": _extreme(aten.min.default),
    "median": _extreme(aten.median.default),
    "nanmedian": _extreme(aten.nanmedian.default),
    "prod": _product,
    "cumprod": _running_product,
}


def with_eagers_gradient(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of the named call, differentiable as in eager; ``NotImplemented`` where torch's own way serves."""
    reduce = _GRADIENTS.get(name.removeprefix("aten::"))
    if reduce is None or not args or not isinstance(args[0], torch.Tensor) or not kwargs.keys() <= _OPTIONS:
        return NotImplemented
    x = args[0]
    if not (torch.is_grad_enabled() and x.requires_grad) or innermost_transform():
        return NotImplemented
    has_options = reduce in (_product, _running_product)
    if (not has_options and len(args) + len(kwargs) > 1) or any(map(free_unbacked_symbols, x.shape)):
        return NotImplemented
    return reduce(*args, **kwargs)


_OPTIONS = frozenset(("dim", "keepdim", "dtype"))
