"""Values and gradients of small tensors of zeros, knots, infinities and NaN.

Eager's kernels take what fills no vector by scalars, and autograd's formulas for some reductions look at the data: both
show in small tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, inf, nan

import turret
from tests.op_db.test_special_values import compiled, differ

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(F, name)
        for name in """
            elu hardshrink hardsigmoid hardswish hardtanh softshrink
        """.split()  # noqa: SIM905
    },
    "gelu": lambda x: F.gelu(x.clamp(max=30)),  # oneDNN's kernel for AVX512 has NaN for infinity
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logit": torch.logit,
    "logit with eps": lambda x: torch.logit(x, eps=1e-3),
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": torch.max,
    "min": lambda x: x.min(),
    "median": torch.median,
    "nanmedian": lambda x: x.nanmedian(),
    "amax": lambda x: x.amax(0),
    "prod": torch.prod,
    "prod along": lambda x: x.prod(0),
    "prod along, kept": lambda x: torch.prod(x, dim=-1, keepdim=True),
    "cumprod": lambda x: x.cumprod(0),
    "cumprod along the last": lambda x: torch.cumprod(x, dim=-1),
}
OPS = {**ACTIVATIONS, **REDUCTIONS}
ZERO_SIGNED = {f"{name}, {kind}" for name in ACTIVATIONS for kind in ("result", "gradient")} - {"gelu, result"}
"""What has zeros of one sign in eager whatever kernel runs: oneDNN has a kernel of gelu, of some dtypes."""
POINTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 0.3, -0.3, 3.0, -3.0, 6.0, 20.0, inf, -inf, nan)
FEW = ((0.0, 1.0, 2.0, -0.0), (1.0, 2.0, inf, 0.5), (1.0, 2.0, nan, -inf), (0.0, inf, nan, 1.0))
TANGENTS = ((1.0,), (1.5, -2.0, 0.5), (1.0, inf), (nan, 1.0))


@st.composite
def cases(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor, and the tangents of the first elements of a result."""
    count = torch.Size(shape).numel()
    points = draw(st.sampled_from((POINTS, *FEW)))
    values = draw(st.lists(st.sampled_from(points), min_size=count, max_size=count))
    tangents = draw(st.sampled_from(TANGENTS))
    return torch.tensor(values, dtype=dtype).view(shape), torch.tensor((tangents * count)[:count], dtype=dtype)


def gradients(run: Callable[[list[Tensor]], list[Tensor]], x: Tensor, tangents: Tensor, count: int) -> list[Tensor]:
    """Results, and then the gradient of each, of ``count`` ops of leaves of their own."""
    leaves = [x.clone().requires_grad_() for _ in range(count)]
    results = run(leaves)
    upstream = [tangents[: r.numel()].view(r.shape).contiguous() for r in results]
    return [*(r.detach() for r in results), *torch.autograd.grad(results, leaves, upstream)]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(torch.float32, (21,)), (torch.bfloat16, (2, 3))],
    ids=str,
)
def test_small_tensors_of_special_values_have_eagers_gradients(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def every(leaves: list[Tensor]) -> list[Tensor]:
        return [function(x) for function, x in zip(OPS.values(), leaves, strict=True)]

    run = compiled(every)

    @settings(max_examples=10)
    @given(cases(shape, dtype))
    def agree(case: tuple[Tensor, Tensor]) -> None:
        found = gradients(run, *case, len(OPS))
        expected = gradients(every, *case, len(OPS))
        kinds = [f"{name}, {kind}" for kind in ("result", "gradient") for name in OPS]
        for kind, got, wanted in zip(kinds, found, expected, strict=True):
            bad = differ(wanted, got)
            if kind not in ZERO_SIGNED:
                bad &= (wanted != 0) | (got != 0)
            assert not bad.any(), f"{kind} of {case}: {got}, eager {wanted}"

    agree()


def test_the_gradient_of_the_gradient_of_a_product_is_eagers() -> None:
    def second(x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for product in (x.prod(), x.prod(0), x.prod(-1, keepdim=True)):
            (first,) = torch.autograd.grad(product.sum(), x, create_graph=True)
            found += [first, *torch.autograd.grad(first.square().sum(), x)]
        return tuple(found)

    run = compiled(second)
    for values in ([2.0, 3.0, 0.5, -1.5], [2.0, 0.0, 0.5, -1.5], [0.0, 0.0, 2.0, 3.0], [1e30, 1e30, 1e-40, 2.0]):
        x = torch.tensor(values, dtype=torch.float64).view(2, 2).requires_grad_()
        for got, expected in zip(run(x), second(x), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)


def test_the_gradient_of_the_gradient_of_a_running_product_is_eagers() -> None:
    def second(x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for products in (x.cumprod(0), x.cumprod(-1), x.view(-1).cumprod(0)):
            (first,) = torch.autograd.grad(products.sum(), x, create_graph=True)
            found += [first, *torch.autograd.grad(first.square().sum(), x)]
        return tuple(found)

    run = compiled(second)
    for values in ([2.0, 3.0, 0.5, -1.5], [2.0, 0.0, 0.5, -1.5], [0.0, 0.0, 2.0, 3.0], [3.0, 0.5, 0.0, 0.0]):
        x = torch.tensor(values, dtype=torch.float64).view(2, 2).requires_grad_()
        for got, expected in zip(run(x), second(x), strict=True):
            torch.testing.assert_close(got, expected)


def test_products_of_dynamic_sizes_have_eagers_gradients() -> None:
    def products(x: Tensor) -> Tensor:
        return x.prod(0).sum() + x.prod(dtype=torch.float64) + x.cumprod(0).sum()

    run = turret.compile(products, dynamic=True, fullgraph=True)
    for rows in (3, 4, 1):
        x = torch.arange(2.0 * rows).view(rows, 2).requires_grad_()
        y = x.detach().clone().requires_grad_()
        run(x).backward()
        products(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
