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
