"""Pointwise ops that torch has no decomposition for, or one that differs from eager."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from turret.plugins.decompositions.registry import convert, decomposes, rounded, widen
from turret.torch_compat.dispatch import has_kernel_for
from turret.torch_compat.operators.decompositions import torch_table

aten = torch.ops.aten


@decomposes("sgn")
def sgn(x: torch.Tensor) -> torch.Tensor:
    return aten.sign.default(x)


@decomposes("frac")
def frac(x: torch.Tensor) -> torch.Tensor:
    """+0 for whole numbers of both signs, as eager; up to torch 2.11 its own decomposition keeps the sign of -0."""
    return aten.sub.Tensor(x, aten.trunc.default(x))


@decomposes("angle")
def angle(x: torch.Tensor) -> torch.Tensor:
    """0 for what is not negative, pi for what is, NaN for NaN; integers give the default float dtype."""
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    options = {"dtype": dtype, "device": x.device, "pin_memory": False}
    pi, zero = aten.full.default([], math.pi, **options), aten.full.default([], 0.0, **options)
    result = aten.where.self(aten.lt.Scalar(x, 0), pi, zero)
    return aten.where.self(aten.isnan.default(x), x, result) if x.dtype.is_floating_point else result


def ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """``x * 2**exponent``, rounded once, of floats and integers, even where the power alone would overflow.

    As in eager, which gives each exponent to C as an ``int``, their lowest 32 bits count.
    Torch's own, which eager is otherwise, multiplies by a power in the dtype of the result: zero times 2**130 is NaN.
    """
    dtype = x.dtype
    if exponent.dtype.is_floating_point or exponent.dtype.is_complex or not dtype.is_floating_point:
        return torch_table[aten.ldexp.Tensor](x, exponent)
    left = convert(exponent, torch.int32)
    value = convert(x, torch.float64)
    powers = []
    for _ in range(3 if dtype == torch.float64 else 1):
        step = aten.clamp.default(left, -_LARGEST_POWER, _LARGEST_POWER)
        powers.append(aten.exp2.default(convert(step, torch.float64)))
        left = aten.sub.Tensor(left, step)
    for power in reversed(powers):  # the rest first: rounding to a subnormal number comes last
        value = aten.mul.Tensor(value, power)
    return convert(value, dtype)


_LARGEST_POWER = 1000
"""Of two, in a float64; every float of fewer bits times it is one, too, or rounds to zero or infinity."""

if not has_kernel_for("aten::ldexp.Tensor", "CompositeImplicitAutograd"):  # it has a kernel of its own since torch 2.13
    decomposes("ldexp.Tensor", any_dtype=True)(ldexp)


@decomposes("_trilinear")
def trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    def aligned(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        x = widen(x)
        for d in sorted(dims):
            x = aten.unsqueeze.default(x, d)
        return x

    product = aten.mul.Tensor(aten.mul.Tensor(aligned(i1, expand1), aligned(i2, expand2)), aligned(i3, expand3))
    return convert(aten.sum.dim_IntList(product, sumdim, False) if sumdim else product, i1.dtype)


@decomposes("smooth_l1_loss", on_cpu=True)
def smooth_l1_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: float = 1.0) -> torch.Tensor:
    """Torch's own; whole where ``beta`` is so large or so small that steps of eager's overflow or underflow.

    Eager's kernel for float16 rounds ``beta`` and after each step, so that half a square overflows before ``beta``
    divides it.
    """
    limits = torch.finfo(torch.float16)
    ordinary = not beta or limits.tiny <= beta <= math.sqrt(2 * limits.max)
    if torch.float16 in (x.dtype, target.dtype) and not ordinary:
        return NotImplemented
    return torch_table[aten.smooth_l1_loss.default](x, target, reduction, beta)


@decomposes("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """Torch's own takes the sign of a NaN difference; eager's kernel hands the NaN on."""
    wide, upstream = widen(aten.sub.Tensor(x, target)), widen(grad)
    norm = 1.0 / x.numel() if reduction == 1 and x.numel() else 1.0
    scaled = aten.mul.Tensor(upstream, norm)
    inside = aten.div.Tensor(aten.mul.Tensor(wide, scaled), beta) if beta else aten.mul.Tensor(wide, scaled)
    right = aten.where.self(aten.ge.Scalar(wide, beta), scaled, inside)
    return convert(aten.where.self(aten.le.Scalar(wide, -beta), aten.neg.default(scaled), right), x.dtype)


@decomposes("mse_loss_backward")
def mse_loss_backward(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
    """Torch's own, which divides by the number of elements, of none as well."""
    return torch_table[aten.mse_loss_backward.default](grad, x, target, reduction if x.numel() else 0)


@decomposes("huber_loss_backward")
def huber_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, delta: float
) -> torch.Tensor:
    """Eager's kernels round ``delta`` to the dtype of ``x``, to zero or infinity too; its ends belong to the slopes."""
    limit = rounded(delta, x.dtype)
    wide, upstream = widen(aten.sub.Tensor(x, target)), widen(grad)
    scaled = aten.mul.Tensor(upstream, 1.0 / x.numel() if reduction == 1 and x.numel() else 1.0)
    steep = aten.mul.Tensor(scaled, limit)
    right = aten.where.self(aten.ge.Scalar(wide, limit), steep, aten.mul.Tensor(scaled, wide))
    return convert(aten.where.self(aten.le.Scalar(wide, -limit), aten.neg.default(steep), right), x.dtype)


@decomposes("binary_cross_entropy")
def binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """Torch's own, of an input and a target that are probabilities, which eager's kernels check."""
    ends = ((aten.ge.Scalar, 0), (aten.le.Scalar, 1))
    tests = [compare(value, end) for value in (x, target) for compare, end in ends]
    accepted = functools.reduce(aten.logical_and.default, tests)
    return torch_table[aten.binary_cross_entropy.default](refusing(x, accepted), target, weight, reduction)


def refusing(x: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    """``x``, read by a kernel that raises where an element is not ``accepted``.

    The check is that of an index, into one element: a frame whose graph raises runs as Python, where the error is
    eager's.
    """
    one = aten.full.default([1], 1, dtype=x.dtype, device=x.device, pin_memory=False)
    return aten.mul.Tensor(
        x, aten.index.Tensor(one, [aten._to_copy.default(aten.logical_not.default(accepted), dtype=torch.int64)])
    )


@decomposes("binary_cross_entropy_backward", on_cpu=True)
def binary_cross_entropy_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """Eager's least denominator is a float32 rounded to the dtype of ``x``, so float16 has none."""
    least = rounded(rounded(1e-12, torch.float32), x.dtype)
    wide = widen(x)
    denominator = aten.clamp_min.default(aten.mul.Tensor(aten.add.Scalar(aten.neg.default(wide), 1), wide), least)
    result = aten.mul.Tensor(widen(grad), aten.sub.Tensor(wide, widen(target)))
    result = aten.div.Tensor(result, denominator)
    if weight is not None:
        result = aten.mul.Tensor(result, widen(weight))
    if reduction == 1:
        result = aten.div.Scalar(result, x.numel())
    return convert(result, x.dtype)


@decomposes("bucketize.Tensor")
def bucketize(
    x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Torch's own reads a tensor without dimensions as a number, and loses the dtype where there is no boundary."""
    if boundaries.shape[0] == 0:
        dtype = torch.int32 if out_int32 else torch.int64
        return aten.full.default(x.shape, 0, dtype=dtype, device=x.device, pin_memory=False)
    search = torch_table[aten.bucketize.Tensor]
    if x.dim():
        return search(x, boundaries, out_int32=out_int32, right=right)
    return aten.view.default(search(aten.view.default(x, [1]), boundaries, out_int32=out_int32, right=right), [])


@decomposes("bucketize.Scalar")
def bucketize_number(
    x: float, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """Torch's own makes a tensor of the number and reads it again; one that changes has to stay a number."""
    return aten.searchsorted.Scalar(boundaries, x, out_int32=out_int32, right=right)


@decomposes("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor:
    return _times_logarithm(x, y, aten.log.default)


@decomposes("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def xlog1py(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor:
    return _times_logarithm(x, y, aten.log1p.default)


def _times_logarithm(x: torch.Tensor | float, y: torch.Tensor | float, logarithm: Callable) -> torch.Tensor:
    """``x * log(y)``, 0 where ``x`` is.  Both are first rounded to the result's dtype, scalars of any kind too."""
    dtype = torch.result_type(x, y)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    device = next(v.device for v in (x, y) if isinstance(v, torch.Tensor))
    factor, argument = (widen(_in_dtype(v, dtype, device)) for v in (x, y))
    product = aten.mul.Tensor(factor, logarithm(argument))
    product = aten.where.self(aten.eq.Scalar(factor, 0), aten.zeros_like.default(product), product)
    nan = aten.full_like.default(product, float("nan"))
    return convert(aten.where.self(aten.ne.Tensor(argument, argument), nan, product), dtype)


def _in_dtype(value: torch.Tensor | float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor or a number as a tensor of a dtype; of a number that the dtype does not hold, infinity."""
    given = value if isinstance(value, torch.Tensor) else _scalar(value, device)
    return given if given.dtype == dtype else aten._to_copy.default(given, dtype=dtype)


def _scalar(value: float, device: torch.device) -> torch.Tensor:
    return aten.full.default([], value, dtype=torch.float64, device=device, pin_memory=False)
