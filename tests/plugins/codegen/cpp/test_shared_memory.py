"""A kernel that writes over what it reads says so: compilers are told that two pointers are one."""

from __future__ import annotations

import re

import pytest
import torch

import turret
from turret.hooks.hookspecs import hookimpl


class Watch:
    """Plugin: keeps the C++ that is generated."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    @hookimpl
    def turret_event(self, event: object) -> None:
        source = getattr(getattr(event, "product", None), "source", None)
        if isinstance(source, str):
            self.sources.append(source)


def zeroed(x: torch.Tensor) -> torch.Tensor:
    kept = x.cumsum(0)
    x[:, :-1].zero_()
    return kept


def halved(x: torch.Tensor) -> torch.Tensor:
    kept = x + 1
    x.mul_(0.5)
    return kept


@pytest.mark.parametrize("program", [zeroed, halved])
def test_a_result_over_what_is_read_has_its_pointer(program):
    watch = Watch()
    compiled = turret.compile(program, plugins=[watch], options={"cache": False})
    x, given = torch.arange(1.0, 18.0).view(1, 17), torch.arange(1.0, 18.0).view(1, 17)
    assert torch.equal(compiled(given), program(x))
    assert torch.equal(given, x)
    assert re.search(r"float\* const p\d = \((const )?float\*\)p\d;", "\n".join(watch.sources))
