"""Powers with a changing int for an exponent are compiled with their gradients."""

from __future__ import annotations

import pytest
import torch

import turret


def _in_place(x, k):
    y = x * 2
    y **= k
    return y


def _written(x, k):
    return (x + 1).pow_(k) * k


def _second(x, k):
    (slope,) = torch.autograd.grad((x**k).abs().sum(), x, create_graph=True)
    return slope * x


PROGRAMS = {
    "operator": lambda x, k: x**k,
    "function": lambda x, k: torch.pow(x, k) + k,
    "in place": _in_place,
    "written": _written,
    "of a gradient": _second,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_power_with_a_changing_exponent_has_eagers_gradient(name, dtype):
    program = PROGRAMS[name]
    compiled = turret.compile(program, fullgraph=True, options={"cache": False, "on_error": "raise"})
    values = torch.tensor([0.5, -1.5, 2.0, 0.0], dtype=dtype)
    for exponent in (2, 3, 4, 7, -1, -2, 0, 1):
        expected, found = (values.clone().requires_grad_() for _ in range(2))
        for function, x in ((program, expected), (compiled, found)):
            result = function(x, exponent)
            result.abs().sum().backward()
        torch.testing.assert_close(found.grad, expected.grad, equal_nan=True)
