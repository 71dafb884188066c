"""Elementwise ops and their gradients at zeros, infinities, NaN and thresholds: NaN, infinities and the sign of zeros.

Eager's kernels have a vector path and a scalar one, which differ at some of these points: what either of them gives
is right.  All ops of one dtype are compiled together, so that a sweep costs a few runs of the C++ compiler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, inf, nan

import turret

POINTS = (0.0, -0.0, 1.0, -1.0, -2.5, 0.3, 0.5, -0.5, inf, -inf, nan, 2.0, 3.0, -3.0, 6.0, -7.0, 0.999, 0.001, 89.0)
SMALL = (1e-4, -1e-4, 6e-39, -6e-39, 3e38)
"""Not for half types, whose kernels keep intermediates in float32 where eager rounds or overflows."""
PAIRS = (0.0, -0.0, 1.0, -2.5, 0.5, 3.0, inf, -inf, nan)
TANGENTS = (1.5, -0.0, inf, nan)

ONE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in """
            abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac log
            log10 log1p log2 logit nan_to_num neg positive reciprocal relu round rsqrt sgn sigmoid sign sin sinh sqrt
            square tan tanh trunc
        """.split()  # noqa: SIM905
    },
    **{
        name: getattr(F, name)
        for name in """
            celu elu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus
            softshrink softsign
        """.split()  # noqa: SIM905
    },
    "celu of 0.7": lambda x: F.celu(x, 0.7),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min of 0": lambda x: x.clamp_min(0.0),
    "hardshrink of 0.3": lambda x: F.hardshrink(x, 0.3),
    "hardtanh of 0.3": lambda x: F.hardtanh(x, -0.5, 0.3),
    "logit with eps": lambda x: torch.logit(x, eps=1e-3),
    "logit with eps of 0": lambda x: torch.logit(x, eps=0.0),
    "softshrink of 0": lambda x: F.softshrink(x, 0.0),
    "softshrink of 0.3": lambda x: F.softshrink(x, 0.3),
    "threshold": lambda x: F.threshold(x, 0.5, 0.3),
    **{f"power {p}": lambda x, p=p: x**p for p in (0, 0.5, 1, 1.5, 2, 3, -0.5, -1, -2)},
    **{f"power of {p}": lambda x, p=p: torch.pow(p, x) for p in (0.0, 1.0, -2.0, inf)},
    **{f"remainder by {p}": lambda x, p=p: torch.remainder(x, p) for p in (0.5, -3.0, inf, 0.0)},
    **{f"fmod by {p}": lambda x, p=p: torch.fmod(x, p) for p in (0.5, -3.0, inf, 0.0)},
    **{
        f"{m} of x / {p}": lambda x, m=m, p=p: torch.div(x, p, rounding_mode=m)
        for m in ("floor", "trunc")
        for p in (0.5, 0.0)
    },
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in """
            add atan2 clamp_max clamp_min copysign div fmod hypot logaddexp maximum minimum mul pow remainder sub xlogy
        """.split()  # noqa: SIM905
    },
    **{
        name: lambda x, y, name=name: getattr(F, name)(x, y, reduction="none")
        for name in "huber_loss kl_div l1_loss mse_loss smooth_l1_loss".split()  # noqa: SIM905
    },
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
}
OPS = {**ONE, **TWO}


def inputs(name: str, dtype: torch.dtype) -> list[Tensor]:
    """Every combination of points, and of tangents, as rows; the tangent is the last."""
    half = dtype.itemsize == 2
    points = PAIRS if name in TWO else POINTS if half else POINTS + SMALL
    values = [torch.tensor(points, dtype=dtype)] * (2 if name in TWO else 1)
    return [t.reshape(-1) for t in torch.meshgrid(*values, torch.tensor(TANGENTS, dtype=dtype), indexing="ij")]


def forward_and_backward(functions: list[Callable], rows: list[list[Tensor]], run: Callable) -> list[list[Tensor]]:
    """Result and gradients of each function; ``run`` calls them all on their leaves."""
    leaves = [[x.clone().requires_grad_() for x in row[:-1]] for row in rows]
    results = run(leaves)
    flat = [leaf for row in leaves for leaf in row]
    gradients = iter(torch.autograd.grad(results, flat, [row[-1] for row in rows]))
    return [[result.detach(), *(next(gradients) for _ in row)] for result, row in zip(results, leaves, strict=True)]


def eager(function: Callable, rows: list[Tensor]) -> list[Tensor]:
    (found,) = forward_and_backward([function], [rows], lambda leaves: [function(*leaves[0])])
    return found


def on_vectors(rows: list[Tensor]) -> list[Tensor]:
    return [torch.cat([row, row.new_ones(-row.numel() % 256)]) for row in rows]


def differ(expected: Tensor, got: Tensor) -> Tensor:
    """Elementwise: NaN, an infinity or a signed zero in one of them only, or numbers that no rounding explains."""
    same = (expected == got) & ((expected != 0) | (expected.signbit() == got.signbit()))
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10}.get(expected.dtype, 0.3)
    distance = (expected.double() - got.double()).abs()
    scale = torch.maximum(expected.double().abs(), got.double().abs())
    numbers = (expected != 0) & (got != 0) & scale.isfinite() & (distance <= tolerance * scale)
    return ~(same | numbers | (expected.isnan() & got.isnan()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.thorough
def test_special_values_and_their_gradients_come_out_as_eager_has_them(dtype: torch.dtype) -> None:
    def every(leaves: list[list[Tensor]]) -> list[Tensor]:
        return [function(*row) for function, row in zip(functions, leaves, strict=True)]

    functions, rows = list(OPS.values()), [inputs(name, dtype) for name in OPS]
    run = compiled(every)
    found = forward_and_backward(functions, [on_vectors(row) for row in rows], run)
    wrong = {}
    for name, function, row, got in zip(OPS, functions, rows, found, strict=True):
        count = row[0].numel()
        wide = eager(function, on_vectors(row))
        single = [
            torch.cat(parts)
            for parts in zip(*(eager(function, [x[i : i + 3] for x in row]) for i in range(0, count, 3)), strict=True)
        ]
        for kind, a, b, c in zip(("result", "gradient", "second gradient"), wide, single, got, strict=False):
            bad = differ(a[:count], c[:count]) & differ(b, c[:count])
            if bad.any():
                at = int(bad.nonzero()[0])
                wrong[f"{name}, {kind}"] = ([x[at].item() for x in row], a[at].item(), b[at].item(), c[at].item())
    assert not wrong, "\n".join(f"{k} at {x}: eager {a} or {b}, compiled {c}" for k, (x, a, b, c) in wrong.items())


def compiled(function: Callable) -> Callable:
    return turret.compile(function, dynamic=False, fullgraph=True, options={"capture": "turret", "on_error": "raise"})


EXTREMES = (
    *(0.0, -0.0, 1e-8, 6e-8, 1e-30, 1e-3, 300.0, 65504.0, 65530.0, 7e4, 1e6, 1e20, 3e38, 1e300, inf, nan),
    *(-1.0, -1e-8, -300.0, -7e4),
)
WITH_A_NUMBER: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "add": lambda x, y, p: torch.add(x, y, alpha=p),
    "celu": lambda x, y, p: F.celu(x, p) if p == p else x,
    "elu": lambda x, y, p: F.elu(x, p),
    "elu of a scale": lambda x, y, p: torch.ops.aten.elu(x, 1.5, p, 0.5),
    "full": lambda x, y, p: torch.full_like(x, p) * x,
    "hardshrink": lambda x, y, p: F.hardshrink(x, p),
    "hardtanh": lambda x, y, p: F.hardtanh(x, -abs(p), abs(p) + 1),
    "huber_loss": lambda x, y, p: F.huber_loss(x, y, delta=p, reduction="none"),
    "huber_loss, mean": lambda x, y, p: F.huber_loss(x, y, delta=p),
    "leaky_relu": lambda x, y, p: F.leaky_relu(x, p),
    "logit": lambda x, y, p: torch.logit(x, eps=p),
    "masked_fill": lambda x, y, p: x.masked_fill(x > 0.4, p),
    "rsub": lambda x, y, p: torch.rsub(x, 2.0, alpha=p),
    "smooth_l1_loss": lambda x, y, p: F.smooth_l1_loss(x, y, beta=p, reduction="none"),
    "smooth_l1_loss, sum": lambda x, y, p: F.smooth_l1_loss(x, y, beta=p, reduction="sum"),
    "softplus": lambda x, y, p: F.softplus(x, p),
    "softplus of a threshold": lambda x, y, p: F.softplus(x, 1.0, p),
    "softshrink": lambda x, y, p: F.softshrink(x, p),
    "sub": lambda x, y, p: torch.sub(x, y, alpha=p),
    "threshold": lambda x, y, p: F.threshold(x, p, 0.5),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WITH_A_NUMBER)
@pytest.mark.thorough
def test_numbers_that_a_half_type_does_not_hold_have_eagers_effect(name: str, dtype: torch.dtype) -> None:
    op = WITH_A_NUMBER[name]
    points = torch.tensor((0.0, 1.0, -2.5, 0.5, 3.0, -300.0, 700.0, -1000.0), dtype=dtype)
    rows = [t.reshape(-1) for t in torch.meshgrid(points, points, indexing="ij")]

    def outcome(run: Callable, count: int) -> list[list[Tensor | None]]:
        leaves = [[x.clone().requires_grad_() for x in rows] for _ in range(count)]
        results = run(leaves)
        flat = [leaf for row in leaves for leaf in row]
        found = iter(torch.autograd.grad(results, flat, [torch.ones_like(r) for r in results], allow_unused=True))
        return [[result.detach(), *(next(found) for _ in rows)] for result in results]

    expected = []
    for number in EXTREMES:
        with contextlib.suppress(RuntimeError):  # of what eager does not take
            expected.append((number, *outcome(lambda leaves, p=number: [op(*leaves[0], p)], 1)))
    every = compiled(lambda leaves: [op(*row, p) for row, (p, _) in zip(leaves, expected, strict=True)])
    wrong = []
    for (number, wanted), found in zip(expected, outcome(every, len(expected)), strict=True):
        for one, other in zip(wanted, found, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None and (bad := differ(one, other)).any():
                at = int(bad.reshape(-1).nonzero()[0])
                wrong.append((number, one.reshape(-1)[at].item(), other.reshape(-1)[at].item()))
    assert not wrong
    assert len(expected) > 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_factor_of_an_operand_is_rounded_to_the_half_type(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.add(x, y, alpha=0.30517), torch.sub(x, y, alpha=0.30517), torch.rsub(x, y, alpha=0.30517)]

    x, y = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0)).to(dtype)
    for got, expected in zip(compiled(function)(x, y), function(x, y), strict=True):
        assert (got != expected).sum() < 20  # which a fused multiply-add rounds once


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tensors_without_dimensions_are_rounded_to_the_half_type_but_as_divisors_and_second_factors(dtype) -> None:
    def function(x: Tensor, s: Tensor) -> list[Tensor]:
        wide = s.abs() + 1
        two = [torch.remainder, torch.fmod, torch.add, torch.mul, torch.div, torch.ge, torch.atan2]
        return [op(*args) for op in two for args in ((x, wide), (wide, x))] + [
            x.pow(1.2345678),
            torch.pow(1.2345678, x),
        ]

    x = (torch.rand(500, generator=torch.Generator().manual_seed(0)) * 6 + 0.5).to(dtype)
    s = torch.tensor(0.3456789)
    for got, expected in zip(compiled(function)(x, s), function(x, s), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_quotient_of_two_halves_is_rounded_before_it_is_truncated(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.div(x, y, rounding_mode="trunc"), torch.div(x, 0.3, rounding_mode="trunc")

    x, y = torch.full((40,), 3.0, dtype=dtype), torch.full((40,), 0.3, dtype=dtype)
    for got, expected in zip(compiled(function)(x, y), function(x, y), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (3, 1), (2, 3), (5, 40), (600, 3)], ids=str)
def test_sums_of_minus_zeros_are_plus_zero(shape: tuple[int, ...]) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (
            x.sum(),
            x.sum(0),
            x.mean(-1, keepdim=True),
            x.cumsum(0),
            torch.var_mean(x, 0, correction=0)[1],
            x.prod(0),
        )

    x = torch.full(shape, -0.0)
    for got, expected in zip(compiled(function)(x), function(x), strict=True):
        assert torch.equal(got.signbit(), expected.signbit())


def test_a_bound_of_zero_keeps_minus_zero() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.relu(), x.clamp_min(0.0), (-x).clamp_max(-0.0), F.relu6(x)

    x = torch.tensor([-0.0, 0.0, 1.0, -1.0] * 20)
    for got, expected in zip(compiled(function)(x), function(x), strict=True):
        assert torch.equal(got.signbit(), expected.signbit())
