"""What kernels of a GPU give exactly where eager does, which no tolerance would show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import turret

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def whole(first: int, last: int) -> Tensor:
    return torch.arange(first, last, dtype=torch.float32)


EXACT: dict[str, tuple[Callable, Tensor]] = {
    "power of two": (lambda x: 2.0**x, whole(-149, 128)),
    "exp2": (torch.exp2, whole(-149, 128)),
    "fourth power": (lambda x: x**4, whole(-60, 61)),
    "cube": (lambda x: x**3, whole(-200, 201)),
    "power of ten": (lambda x: 10.0**x, whole(0, 11)),
    "power of one and a half": (lambda x: (x * x) ** 1.5, whole(0, 200)),
    "fifth power": (lambda x: x ** (x * 0 + 5), whole(-27, 28)),
    "length": (lambda x: torch.hypot(3 * x, 4 * x), whole(-800, 801)),
    "root": (lambda x: (x * x).sqrt(), whole(-4000, 4001)),
    "logarithm": (torch.log2, 2.0 ** whole(-126, 128)),
    "products that cancel": (lambda x: x.sin() * x.cos() - x.cos() * x.sin(), whole(0, 4000)),
    "remainder": (lambda x: torch.fmod(x * 0.25, 0.25), whole(0, 4000)),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_values_are_exact(name: str) -> None:
    function, x = EXACT[name]
    exact = function(x.double()).float() if name != "products that cancel" else torch.zeros_like(x)
    assert torch.equal(turret.compile(function)(x.cuda()).cpu(), exact)


def test_powers_are_within_a_unit_of_the_last_place() -> None:
    drawn = torch.Generator().manual_seed(0)
    base = (torch.rand(1 << 20, generator=drawn) * 175 - 87).exp()
    exponent = (torch.rand(1 << 20, generator=drawn) * 2 - 1) * 126 / base.log2().abs()
    exact = base.double().pow(exponent.double())
    found = turret.compile(torch.pow)(base.cuda(), exponent.cuda()).cpu()
    unit = torch.nextafter(exact.float(), torch.tensor(torch.inf)).double() - exact.float().double()
    assert ((found.double() - exact).abs() / unit).max() < 1
