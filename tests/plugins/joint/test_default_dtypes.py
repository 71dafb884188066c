"""Graphs that set the default dtype: kernels of torch's and compiled ones give what eager gives."""

from __future__ import annotations

import pytest
import torch

import turret

X = torch.arange(1, 5)
OPTIONS = {"on_error": "raise", "cache": False, "fallback_random": True}
CALLS = {
    "rand": lambda x: torch.rand(3),
    "normal": lambda x: torch.normal(0.0, 1.0, (3,)),
    "dropout": lambda x: torch.nn.functional.dropout(torch.ones(4)),
    "logspace": lambda x: torch.logspace(0, 1, 3),
    "window": lambda x: torch.blackman_window(4),
    "frequencies": lambda x: torch.fft.fftfreq(4),
    "fft": torch.fft.fft,
    "polygamma": lambda x: torch.polygamma(1, x),
    "bessel": torch.special.i0,
    "zeta": lambda x: torch.special.zeta(x + 1, x),
    "divide": lambda x: x / 3,
    "scale": lambda x: x * 0.1,
    "complex": lambda x: torch.tensor([1j]) * x,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_under_a_default_dtype_that_the_graph_sets(name):
    def program(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        made = CALLS[name](x)
        torch.set_default_dtype(before)
        return made, torch.ones(1) + x

    results = []
    for call in (turret.compile(program, fullgraph=True, options=OPTIONS), program):
        torch.manual_seed(0)
        results.append(call(X))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
