"""A sum of which one element at most is not zero is that element."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import turret


class Schedules:
    """Keeps the schedules that a compile makes."""

    cache_key = "keeps schedules"

    def __init__(self) -> None:
        self.made: list = []

    @turret.hookimpl
    def turret_event(self, event) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.made.append(event.product)


def compiled_with_rows(function, *args):
    """Result of the compiled function, and how many of its kernels walk a row."""
    kept = Schedules()
    run = turret.compile(function, options={"cache": False, "on_error": "raise"}, plugins=[kept])
    result = run(*args)
    return result, [kernel for schedule in kept.made for kernel in schedule.kernels if kernel.inner]


VALUES = torch.tensor([1.5, -0.0, float("nan"), float("inf"), 3.0, -2.0])
PLACES = torch.tensor([0, 4, 2, -1, 5, 9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_it_is_no_loop_and_equals_eager_s_sum(dtype):
    values = VALUES.nan_to_num(7.0, 8.0).to(dtype) if dtype == torch.int64 else VALUES.to(dtype)

    def picked(values, places):
        hit = torch.arange(6)[None, :] == places[:, None]
        return torch.where(hit & (values > -5)[:, None], values[:, None], 0).sum(1)

    result, rows = compiled_with_rows(picked, values, PLACES)
    torch.testing.assert_close(result, picked(values, PLACES), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(result.double().signbit(), picked(values, PLACES).double().signbit())
    assert not rows


def test_counting_the_hits_is_a_comparison():
    result, rows = compiled_with_rows(
        lambda places: (torch.arange(8) == places[:, None]).sum(-1) * 2, PLACES.clamp(0, 7)
    )
    assert result.tolist() == [2] * 6
    assert not rows


def test_a_value_that_varies_along_the_row_is_still_summed():
    def picked(table, places):
        return torch.where(torch.arange(6)[None, :] == places[:, None], table, 0.0).sum(1)

    table = torch.randn(6, 6)
    result, rows = compiled_with_rows(picked, table, PLACES)
    torch.testing.assert_close(result, picked(table, PLACES))
    assert rows


def test_two_comparisons_with_the_row_are_still_summed():
    def picked(values, places):
        r = torch.arange(6)[None, :]
        return torch.where((r == places[:, None]) & (r == places.clamp(1)[:, None]), values[:, None], 0.0).sum(1)

    result, rows = compiled_with_rows(picked, VALUES, PLACES)
    torch.testing.assert_close(result, picked(VALUES, PLACES), rtol=0, atol=0, equal_nan=True)
    assert rows


def test_the_gradient_of_cross_entropy_walks_no_row():
    """Adding the gradient of the losses up along the classes, as the softmax's gradient does, is one comparison."""
    x, target = torch.randn(6, 50, requires_grad=True), torch.tensor([3, -100, 49, 0, 7, -100])
    kept = Schedules()
    loss = turret.compile(F.cross_entropy, options={"cache": False, "on_error": "raise"}, plugins=[kept])
    (got,) = torch.autograd.grad(loss(x, target), x)
    (want,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    torch.testing.assert_close(got, want)
    backward = kept.made[-1]
    assert not any(kernel.inner for kernel in backward.kernels)
