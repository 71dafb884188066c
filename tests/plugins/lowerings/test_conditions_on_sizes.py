"""Conditions on sizes (``n > 3``) as numbers: arguments of ops on tensors."""

from __future__ import annotations

import pytest
import torch

import turret

CALLS = [(1024, torch.arange(-1.0, 2)), (1023, torch.arange(-2.0, 3)), (5, torch.arange(4.0)), (2000, torch.ones(7))]


@pytest.mark.parametrize(
    "program",
    [
        lambda n, x: torch.full((2,), n >= 1024),
        lambda n, x: torch.full((2,), n >= 1024, dtype=torch.int64) + x.new_full((2,), n != 5),
        lambda n, x: torch.full((2,), x.shape[0] > 3 and n >= 1024),
        lambda n, x: x * (n >= 1024) + (n == 1024),
        lambda n, x: torch.where(x > 0, n >= 1024, False),
        lambda n, x: (x > 0) ^ (n % 5 == 4),
        lambda n, x: (x > 0).scatter(0, torch.tensor([0]), n // 5 != 204),
        lambda n, x: torch.add(x > 0, x < 1, alpha=n >= 1024),
        lambda n, x: torch.pow(x.abs(), n / 7 >= 146.3),
        lambda n, x: torch.full((2,), n * 0.5 > x.shape[0] * 100.5),
    ],
)
def test_a_condition_is_one_or_zero_for_the_sizes_of_each_call(program):
    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise", "cache": False})
    for n, x in CALLS:
        found, expected = compiled(n, x), program(n, x)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
