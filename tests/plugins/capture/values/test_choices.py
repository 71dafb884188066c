"""What ``max`` and ``min`` of tensors and numbers give, one of which data choose, is computed with in the graph."""

from __future__ import annotations

import pytest
import torch

import turret


def between(a, b):
    low, high = min(max(a.sum(), 0), 1), max(0, min(1, b.sum()))
    return max(low, high) - min(low, high) + a


def bounded(a, b):
    low, high = max(min(a.sum(), 1), 0), max(min(b.sum(), 1), 0)
    return (high - low) * a + max(low, high) * b


def bounded_by_floats(a, b):
    low, high = min(max(a.sum(), -0.5), 2.5), min(max(b.sum(), -0.5), 2.5)
    return min(low, high) * 2 + max(low, high) * a


def largest(a, b):
    low, high = min(a.min(), 0), min(b.min().item(), 0)
    return a * abs(low) - b * -low, max(abs(high), b.max().item()) + a, a * (float(high) / 3)


@pytest.mark.parametrize("program", (between, bounded, bounded_by_floats, largest))
def test_choices_among_few_objects_are_combined_however_they_came_about(program):
    fast = turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False})
    for first in (-3.0, -0.25, 0.0, 0.125, 0.25, 0.5, 4.0):
        for second in (-2.0, -0.125, 0.0, 0.25, 1.0):
            a, b = torch.full((2,), first), torch.full((2,), second)
            torch.testing.assert_close(fast(a, b), program(a, b), rtol=0, atol=0)
