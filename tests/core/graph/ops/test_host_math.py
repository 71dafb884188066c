"""What the host computes of numbers of data is what Python and indexing give."""

from __future__ import annotations

import math

import pytest
import torch

from turret.graph.ops.host_math import element, float_power, host_math

KEYS = [(1,), (-1, 2), (slice(None), 1), (slice(1, 2), None, 0), (..., 2), (0, ..., 1), (None, 1, slice(0, 3, 2))]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_an_element_is_what_indexing_gives(key):
    x = torch.arange(24).reshape(2, 3, 4)
    found = element(x, key)
    assert torch.equal(found, x[key]) and found.stride() == x[key].stride() and found._base is x._base


def test_too_many_indices_are_refused():
    with pytest.raises(IndexError, match="too many indices"):
        element(torch.zeros(2), (0, 0))


@pytest.mark.parametrize("numbers", [("sqrt", 2.0), ("log10", 7.0), ("hypot", 3.0, 1e200), ("copysign", 2.0, -0.0)])
def test_functions_of_math_are_pythons_to_the_last_bit(numbers):
    name, *given = numbers
    found = host_math(name, [torch.tensor(n, dtype=torch.float64) for n in given])
    assert found.dtype is torch.float64 and found.item() == getattr(math, name)(*given)


@pytest.mark.parametrize("base, exponent", [(-2.0, 3), (2, -2), (0.5, 2.5), (-1.5, -2.0)])
def test_powers_of_numbers_are_pythons(base, exponent):
    assert float_power(base, exponent) == base**exponent
