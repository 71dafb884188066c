"""Numbers that are computed from others: sizes, floats and conditions, as one expression each."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.plugins.lowerings import lower


def ints(x, numbers):
    return x + sum(numbers)


def floats(x, numbers):
    total = 0.5
    for number in numbers:
        total = total + number * 1.5
    return x * total


def conditions(x, numbers):
    return torch.where(x > 0, sum(numbers) > 7, x < 1)


@pytest.mark.parametrize("program", [ints, floats, conditions], ids=lambda p: p.__name__)
def test_a_long_sum_is_written_once(program, monkeypatch):
    asked = []
    number_of = lower.number_of
    monkeypatch.setattr(lower, "number_of", lambda value: asked.append(value) or number_of(value))
    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise", "cache": False})
    x, many = torch.randn(3), 60
    for first in (2, 3):
        numbers = list(range(first, many + first))
        torch.testing.assert_close(compiled(x, numbers), program(x, numbers))
    assert len(asked) < 1.5 * many  # the numbers handed in, and what kernels read
