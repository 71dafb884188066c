"""Fake results have the dtypes and layouts of real ones, in every supported version of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import turret
from turret.fake_corrections import CorrectedFakeTensorMode

X = torch.tensor([[2.0, 1.0, 2.0], [3.0, 1.0, 2.0]])


def layouts(results: tuple[Tensor, ...]) -> list[tuple]:
    return [(r.dtype, r.dim(), r.device) for r in results]


@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive], ids=["unique", "unique_consecutive"])
@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_inverse_and_counts_are_integers(function: Callable, dim: int | None, dtype: torch.dtype) -> None:
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    real = X.to(dtype)
    with mode:
        found = function(mode.from_tensor(real), return_inverse=True, return_counts=True, dim=dim)
    assert layouts(found) == layouts(function(real, return_inverse=True, return_counts=True, dim=dim))


def halved(x: Tensor) -> tuple[Tensor, ...]:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values * 2, inverse.float().mean(), inverse // 2, counts / 2


@pytest.mark.parametrize("options", [{}, {"capture_dynamic_output_shape_ops": True}], ids=["breaks", "one graph"])
def test_what_is_computed_of_an_inverse_is_eagers(options: dict) -> None:
    run = turret.compile(halved, options={"on_error": "raise", "cache": False, **options})
    for rows in (X, X.flip(0), torch.randint(0, 4, (5, 3)).float()):
        for got, expected in zip(run(rows), halved(rows), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "power",
    [lambda x, r: x**r, lambda x, r: r**x, lambda x, r: torch.pow(x, r) + torch.pow(r, x)],
    ids=["x", "r", "both"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_power_by_a_number_that_changes_breaks_no_graph(power: Callable, dtype: torch.dtype) -> None:
    run = turret.compile(power, fullgraph=True, options={"on_error": "raise", "cache": False})
    x = X.to(dtype)
    for number in (0.7, 1.3, 2.0, 0.5, 1.0, 3.0):
        torch.testing.assert_close(run(x, number), power(x, number))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return torch.native_layer_norm(x, [3], weight, bias, 1e-5)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return torch.native_group_norm(x.mT.contiguous(), weight, bias, 2, 3, 4, 1, 1e-5)


@pytest.mark.parametrize("norm", [layer_norm, group_norm])
def test_statistics_of_a_half_beside_wide_parameters(norm: Callable) -> None:
    mode = CorrectedFakeTensorMode()
    real = (torch.ones(2, 4, 3, dtype=torch.bfloat16), torch.ones(3), torch.ones(3))
    with mode:
        found = norm(*map(mode.from_tensor, real))
    assert layouts(found) == layouts(norm(*real))
