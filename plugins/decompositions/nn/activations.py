"""Activations and their gradients where torch's decompositions differ from eager at NaN, signed zeros or thresholds.

Eager's CPU kernels have a vector path and a scalar one for what is left of a tensor, and at these points the two
differ; each element is given what the path does that it meets (``vector_paths``).
"""

from __future__ import annotations

import torch

from turret.graph.dtypes import HALF
from turret.hooks.devices import uses_host_kernels
from turret.plugins.decompositions.registry import convert, decomposes, rounded, widen
from turret.plugins.decompositions.vector_paths import by_vectors

aten = torch.ops.aten


def _constant(value: float, like: torch.Tensor) -> torch.Tensor:
    return aten.full.default([], value, dtype=like.dtype, device=like.device, pin_memory=False)


def _between(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """``low <= x <= high``; false for NaN."""
    return aten.logical_and.default(aten.ge.Scalar(x, low), aten.le.Scalar(x, high))


@decomposes("softshrink", on_cpu=True)
def softshrink(x: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    """``x`` moved to zero by ``lambd``, which is not rounded to a half type.

    What is nearer is +0 for both signs by vectors, and times 0 by scalars.
    """
    wide = widen(x)
    moved = aten.where.self(aten.gt.Scalar(wide, lambd), aten.sub.Scalar(wide, lambd), aten.add.Scalar(wide, lambd))
    near = by_vectors("softshrink", x, lambda: _constant(0.0, wide), lambda: aten.mul.Scalar(wide, 0.0))
    return convert(aten.where.self(_between(wide, -lambd, lambd), near, moved), x.dtype)


@decomposes("hardshrink", on_cpu=True)
def hardshrink(x: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    """``x``, or 0 where it is not further from zero than ``lambd``, here rounded to the dtype of ``x``."""
    return aten.where.self(_between(x, -lambd, lambd), _constant(0.0, x), x)


@decomposes("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad: torch.Tensor, x: torch.Tensor, lambd: float) -> torch.Tensor:
    """The upstream gradient further from zero than the rounded ``lambd``; NaN has none by the CPU's vectors."""
    zero = _constant(0.0, grad)

    def scalars() -> torch.Tensor:
        return aten.where.self(_between(x, -lambd, lambd), zero, grad)

    if not uses_host_kernels(x.device):
        return scalars()

    def vectors() -> torch.Tensor:
        return aten.where.self(aten.gt.Scalar(aten.abs.default(x), lambd), grad, zero)

    return by_vectors("shrink_backward", x, vectors, scalars)


@decomposes("threshold_backward", on_cpu=True)
def threshold_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    """The upstream gradient above the threshold, which is not rounded to a half type, and for NaN."""
    exact = rounded(threshold, x.dtype) == threshold if x.dtype in HALF else True
    return aten.where.self(aten.le.Scalar(x if exact else widen(x), threshold), _constant(0.0, grad), grad)


@decomposes("hardtanh_backward", on_cpu=True)
def hardtanh_backward(grad: torch.Tensor, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The upstream gradient strictly inside the bounds, 0 elsewhere; NaN counts as outside by vectors alone."""
    wide, zero = widen(x), _constant(0.0, grad)

    def vectors() -> torch.Tensor:
        inside = aten.logical_and.default(aten.gt.Scalar(wide, low), aten.lt.Scalar(wide, high))
        return aten.where.self(inside, grad, zero)

    def scalars() -> torch.Tensor:
        outside = aten.logical_or.default(aten.le.Scalar(wide, low), aten.ge.Scalar(wide, high))
        return aten.where.self(outside, zero, grad)

    return by_vectors("hardtanh_backward", x, vectors, scalars)


@decomposes("hardswish_backward", on_cpu=True)
def hardswish_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """NaN for NaN, whose slope the scalar path takes for 1."""
    wide, upstream = widen(x), widen(grad)
    sloped = aten.mul.Tensor(upstream, aten.add.Scalar(aten.div.Scalar(wide, 3.0), 0.5))
    right = by_vectors(
        "hardswish_backward",
        x,
        lambda: aten.where.self(aten.ge.Scalar(wide, 3.0), upstream, sloped),
        lambda: aten.where.self(aten.lt.Scalar(wide, 3.0), sloped, upstream),
    )
    result = aten.where.self(aten.le.Scalar(wide, -3.0), _constant(0.0, wide), right)
    return convert(result, grad.dtype)


_SIXTH = rounded(1 / 6, torch.float32)
"""Eager's kernel has the slope of hardsigmoid as a float32, for float64 too."""


@decomposes("hardsigmoid_backward", on_cpu=True)
def hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    wide = widen(x)
    inside = aten.logical_and.default(aten.gt.Scalar(wide, -3.0), aten.lt.Scalar(wide, 3.0))
    slope = aten.mul.Scalar(widen(grad), _SIXTH)
    return convert(aten.where.self(inside, slope, _constant(0.0, wide)), grad.dtype)


@decomposes("elu", on_cpu=True)
def elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """Zeros go the straight way: they stay zeros, and keep their signs, whatever ``alpha`` is."""
    wide = widen(x)
    curve = aten.mul.Scalar(aten.expm1.default(aten.mul.Scalar(wide, input_scale)), rounded(alpha * scale, wide.dtype))
    return convert(aten.where.self(aten.lt.Scalar(wide, 0.0), curve, aten.mul.Scalar(wide, scale)), x.dtype)


@decomposes("celu", on_cpu=True)
def celu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Eager multiplies by the reciprocal of ``alpha``, which is not 0 (see the joint trace's input checks)."""
    return elu(x, alpha, 1.0, 1.0 / alpha)


@decomposes("elu_backward", on_cpu=True)
def elu_backward(
    grad: torch.Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: torch.Tensor
) -> torch.Tensor:
    """``x`` is elu's input, or with ``is_result`` its result; NaN goes the exponential's way by vectors alone."""
    wide, upstream = widen(x), widen(grad)
    factor = rounded(alpha * scale, wide.dtype)
    if is_result:
        below = aten.mul.Tensor(aten.mul.Scalar(upstream, input_scale), aten.add.Scalar(wide, factor))
    else:
        slope = aten.exp.default(aten.mul.Scalar(wide, input_scale))
        below = aten.mul.Tensor(aten.mul.Scalar(upstream, rounded(input_scale * factor, wide.dtype)), slope)
    above = aten.mul.Scalar(upstream, scale)
    result = by_vectors(
        "elu_backward",
        x,
        lambda: aten.where.self(aten.gt.Scalar(wide, 0.0), above, below),
        lambda: aten.where.self(aten.le.Scalar(wide, 0.0), below, above),
    )
    return convert(result, grad.dtype)


@decomposes("logit")
def logit(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """``log(x / (1 - x))`` of ``x`` held inside ``eps`` and ``1 - eps``, both rounded to the dtype."""
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    wide = widen(convert(x, dtype))
    bounds = _logit_bounds(eps, dtype)
    if bounds is not None:
        low, high = bounds
        # Of bounds that cross, the lower one first.
        below, above = aten.lt.Scalar(wide, low), aten.gt.Scalar(wide, high)
        wide = aten.where.self(below, _constant(low, wide), aten.where.self(above, _constant(high, wide), wide))
    odds = aten.div.Tensor(wide, aten.add.Scalar(aten.neg.default(wide), 1))
    return convert(aten.log.default(odds), dtype)


def _logit_bounds(eps: float | None, dtype: torch.dtype) -> tuple[float, float] | None:
    """``eps`` and ``1 - eps`` as eager has them: for bfloat16 and an ``eps`` of 1e-3 the upper one is 1.

    None for a negative ``eps`` as for none.
    """
    low = None if eps is None else rounded(eps, dtype)
    return None if low is None or low < 0 else (low, rounded(1 - low, dtype))


@decomposes("logit_backward")
def logit_backward(grad: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """With ``eps`` the gradient outside its bounds is 0, and without it NaN.

    With ``eps`` NaN counts as outside by the CPU's vectors; elsewhere it is handed on.  By the CPU's scalars both zeros
    have the slope of +0.
    """
    wide, upstream = widen(x), widen(grad)
    bounds = _logit_bounds(eps, x.dtype)
    low, high = bounds or (0.0, 1.0)
    beyond = _constant(float("nan") if bounds is None else 0.0, wide)
    inside = _between(wide, low, high)
    inside_or_nan = aten.logical_or.default(inside, aten.isnan.default(wide))
    slope = aten.div.Tensor(upstream, aten.mul.Tensor(wide, aten.add.Scalar(aten.neg.default(wide), 1)))

    def scalars() -> torch.Tensor:
        steep = aten.where.self(aten.eq.Scalar(wide, 0), aten.mul.Scalar(upstream, float("inf")), slope)
        return aten.where.self(inside_or_nan, steep, beyond)

    if uses_host_kernels(x.device):
        result = by_vectors("logit_backward", x, lambda: aten.where.self(inside, slope, beyond), scalars)
    else:
        result = aten.where.self(inside_or_nan, slope, beyond)
    return convert(result, x.dtype)
