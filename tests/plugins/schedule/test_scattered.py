"""A write to a few elements of a cache, in place, is part of the small kernel that computes what is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from turret.hooks.devices import KernelFamily
from turret.ir import Kernel, verify


class Cache(torch.nn.Module):
    """Keys so far; ``reads``: whether the step reads the cache before it writes to it."""

    def __init__(self, reads: str = "") -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("keys", torch.zeros(4, 16, 8))
        self.register_buffer("values", torch.zeros(4, 16, 8))

    def forward(self, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        k = k * 2 + 1
        if self.reads == "before":
            k = k + self.keys[:, :1]
        self.keys.index_copy_(1, position, k)
        self.values.index_copy_(1, position, v + 1)
        return (self.keys * self.values).sum(1) + (k.sum() if self.reads == "after" else 0)


class Kept:
    """Plugin: the last schedule."""

    made: Any = None

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.made = event.product


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> InterpretedCodegen:
    """Triton on a device that is as a GPU is: launches cost, and an error ends the program."""
    made = InterpretedCodegen()
    device = type(made.turret_device("cpu"))
    monkeypatch.setattr(device, "asynchronous", True)
    monkeypatch.setattr(device, "eager_kernels", KernelFamily.GPU)
    return made


@pytest.mark.parametrize("reads", ["", "before", "after"])
def test_a_step_writes_what_eager_writes(reads: str, generator: InterpretedCodegen) -> None:
    mine, theirs, kept = Cache(reads), Cache(reads), Kept()
    made = turret.compile(mine, plugins=[generator, kept], options={"on_error": "raise", "cache": False})
    torch.manual_seed(0)
    with torch.no_grad():
        for position in (3, 0, 15, 3):
            args = torch.randn(4, 1, 8), torch.randn(4, 1, 8), torch.tensor([position])
            torch.testing.assert_close(made(*args), theirs(*args))
    for name, buffer in mine.named_buffers():
        torch.testing.assert_close(buffer, theirs.get_buffer(name))
    verify(kept.made)
    scatters = [
        len(step.stores)
        for step in kept.made.steps
        if isinstance(step, Kernel) and any(store.mode == "set" for store in step.stores)
    ]
    assert sum(scatters) > len(scatters)
