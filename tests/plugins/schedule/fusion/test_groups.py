"""Definitions share loops only where each point of one is a point of the other."""

from __future__ import annotations

import pytest
import torch

import turret


def row_of_two(x, y, n):
    written = torch.hstack((x, y))
    stacked = torch.stack((x, x), 2)
    written[:, n] = n
    return stacked, written


def rows_and_a_row(x, y, n):
    return torch.cat((x, x), -1) + 1, torch.cat((x, y), 1).index_fill(1, torch.tensor([n]), 3.0)


def row_and_rows(x, y, n):
    return torch.cat((x, y), 1).select_scatter(y[:, 0], 1, n), torch.cat((x, y), 2) * x.sum()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("length", [1, 2, 64])
@pytest.mark.parametrize("program", [row_of_two, rows_and_a_row, row_and_rows])
def test_loops_of_as_many_points_are_not_taken_for_one_another(program, length, dynamic):
    x, y = torch.arange(2.0 * length).view(2, 1, 1, length)
    compiled = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    for number in (0, 1):
        torch.testing.assert_close(compiled(x, y, number), program(x, y, number))


def gradients_of_a_weight_for_each_channel(x):
    weight = torch.ones(x.shape[1] if x.dim() == 4 else 1, requires_grad=True)
    return torch.autograd.grad((weight[..., None] - x[..., None]).sum() + torch.prelu(x, weight).sum(), (x, weight))


def rows_of_nothing_beside_columns_of_nothing(x):
    turned = (x * 2).reshape(x.shape[::-1])
    return x.sum(0), turned + 1, turned.sum(1), turned.amax(turned.shape.index(max(turned.shape)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(7, 100, 0, 100), (0, 5, 3), (5, 0), (3, 5, 0)])
@pytest.mark.parametrize("program", [gradients_of_a_weight_for_each_channel, rows_of_nothing_beside_columns_of_nothing])
def test_loops_without_points_are_scheduled_whatever_their_extents(program, shape, dynamic):
    x = torch.empty(shape, requires_grad=True)
    compiled = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    for got, expected in zip(compiled(x), program(x), strict=True):
        assert torch.equal(got, expected) and got.stride() == expected.stride()
