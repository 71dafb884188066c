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
