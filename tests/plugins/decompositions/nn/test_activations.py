"""Activations' decompositions at the points where torch's own differ from what eager's kernels give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, inf, nan

from turret.plugins.decompositions.registry import rounded
from turret.plugins.decompositions.table import decomposition_table

aten = torch.ops.aten
POINTS = torch.tensor([0.0, -0.0, 1.0, -2.5, 3.0, -3.0, 0.3, -0.2, inf, -inf, nan, 1e-4])

GRADIENTS = {
    aten.hardswish_backward.default: (),
    aten.hardtanh_backward.default: (-1.0, 1.0),
    aten.hardsigmoid_backward.default: (),
    aten.hardshrink_backward.default: (0.3,),
    aten.softshrink_backward.default: (0.3,),
    aten.logit_backward.default: (1e-3,),
    aten.threshold_backward.default: (0.3,),
}


def decomposed(op, *args) -> Tensor:
    return decomposition_table()[op](*args)


def assert_as_eager(op, *args) -> None:
    """The decomposition gives what eager's kernel does: where all is done by scalars, by vectors, or by both."""
    for times in (1, 5, 64):
        rows = [a.repeat(times) if isinstance(a, Tensor) else a for a in args]
        got, expected = decomposed(op, *rows), op(*rows)
        torch.testing.assert_close(got, expected, equal_nan=True)
        number = ~expected.isnan()
        assert torch.equal(got.signbit()[number], expected.signbit()[number])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", GRADIENTS, ids=str)
def test_gradients_at_nan_infinities_and_thresholds(op, dtype: torch.dtype) -> None:
    x = POINTS.to(dtype)
    for tangent in (1.5, 0.0, inf):
        args = (torch.full_like(x, tangent), x, *GRADIENTS[op])
        assert_as_eager(op, *args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("alpha", [1.0, -1.0, 0.0, -0.0, inf, -inf, nan])
def test_elu_of_zero_is_zero_for_every_alpha(alpha: float, dtype: torch.dtype) -> None:
    x = POINTS.to(dtype)
    for constants in ((alpha, 1.0, 1.0), (alpha, -1.0, 1.0), (1.0, alpha, 1.0), (1.0, 1.0, alpha)):
        assert_as_eager(aten.elu.default, x, *constants)
    if alpha != 0:
        assert_as_eager(aten.celu.default, x, alpha)


@pytest.mark.parametrize("is_result", [False, True])
def test_the_gradient_of_elu_of_nan_is_nan(is_result: bool) -> None:
    for constants in ((1.0, 1.0, 1.0), (1.67, 1.05, 1.0), (1.0, 1.0, 1 / 0.7)):
        args = (torch.ones_like(POINTS), *constants, is_result, POINTS)
        assert_as_eager(aten.elu_backward.default, *args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", [aten.softshrink.default, aten.hardshrink.default], ids=str)
def test_what_shrinks_to_zero_is_plus_zero_by_vectors(op, dtype: torch.dtype) -> None:
    x = POINTS.to(dtype)
    assert_as_eager(op, x, 0.3)
    assert not decomposed(op, torch.tensor([-0.2, -0.0] * 64, dtype=dtype), 0.3).signbit().any()


def test_the_bound_of_logit_is_rounded_to_bfloat16() -> None:
    x = torch.tensor([1.0, 0.5, 2.0, -1.0], dtype=torch.bfloat16)
    got = decomposed(aten.logit.default, x, 1e-3)
    assert got[0] == inf and got[2] == inf
    torch.testing.assert_close(got, torch.logit(x, 1e-3))
    x = x.repeat(64)
    gradient = decomposed(aten.logit_backward.default, torch.ones_like(x), x, 1e-3)
    torch.testing.assert_close(gradient, aten.logit_backward.default(torch.ones_like(x), x, 1e-3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_the_gradient_of_binary_cross_entropy_at_its_ends(dtype: torch.dtype) -> None:
    x, target = torch.tensor([[0.0, 1.0, 0.5]], dtype=dtype), torch.tensor([[0.0], [1.0], [0.25]], dtype=dtype)
    x, target = (t.contiguous() for t in torch.broadcast_tensors(x, target))
    op = aten.binary_cross_entropy_backward.default
    for rest in ((None, 0), (torch.full_like(x, 2.0), 0), (None, 1)):
        grad = torch.full_like(x, 1.5) if rest[1] == 0 else x.new_tensor(1.5)
        got, expected = decomposed(op, grad, x, target, *rest), op(grad, x, target, *rest)
        tolerance = 1e-3 if dtype.itemsize == 2 else 1e-13
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_numbers_are_rounded_as_tensors_are(dtype: torch.dtype) -> None:
    for value in (0.0, -0.0, 1e-3, 0.999, 1 - 2**-9, 1 + 2**-9, 1 + 3 * 2**-9, 1 / 3, -0.2, 1e-7):
        expected = torch.tensor(value, dtype=torch.float64).to(dtype).item()
        assert rounded(value, dtype) == expected
