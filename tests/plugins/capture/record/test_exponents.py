"""Sizes that are powers of other sizes compile: the exponent is assumed, by a guard, to be what it is now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import turret

PROGRAMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "power": lambda x, n: torch.zeros(2**n) + 1,
    "power of a size": lambda x, n: x.new_zeros(x.shape[0] ** (n % 3)) + 1,
    "pow": lambda x, n: torch.zeros(pow(3, n)) + 1,
    "shift": lambda x, n: x[: 1 << n] + 1,
    "shift to the right": lambda x, n: x[: 1000 >> n] + 1,
    "method": lambda x, n: x[: n.__rpow__(2)] + 1,
    "in place": lambda x, n: (lambda k: x[:k] * 2)([k := 2, k := k**n][1]),
}


@pytest.mark.filterwarnings("error::turret.errors.TurretWarning")
@pytest.mark.parametrize("from_shape", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_powers_of_sizes_run_compiled(name: str, from_shape: bool) -> None:
    def program(x: torch.Tensor, given: object) -> torch.Tensor:
        return PROGRAMS[name](x[:9], given.shape[0] if from_shape else given)

    compiled = turret.compile(program, dynamic=True, options={"cache": False, "on_error": "raise"})
    for n in (3, 5, 4, 3):
        given = torch.ones(n) if from_shape else n
        torch.testing.assert_close(compiled(torch.arange(40.0), given), program(torch.arange(40.0), given))
