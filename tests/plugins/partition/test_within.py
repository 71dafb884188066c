"""Backwards inside one graph: what is cheap is computed again for them, and memory is that of two graphs."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import turret
from turret.graph.partitioning.tags import RECOMPUTED

OPTIONS = {"on_error": "raise", "cache": False}


class Block(nn.Module):
    """Large results in between that a backward reads and that little work makes again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@attrs.define(eq=False)
class Watching:
    """A plugin that notes peaks of memory and what the graphs call."""

    peaks: dict[str, int] = attrs.field(factory=dict)
    names: set[str] = attrs.field(factory=set)
    saved: int = 0

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind != "product":
            return
        if event.stage == "schedule":
            self.peaks[event.product.program.name.rpartition(".")[2]] = event.product.memory.peak_bytes
        elif event.stage == "partition":
            self.names |= {node.name for node in event.product.forward.graph.nodes}
            self.saved = sum(each.bytes or 0 for each in event.product.saved_tensors if each.reason == "activation")


def training(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Any) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def made() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, lambda x, y: F.cross_entropy(model(x), y)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(256, 16), torch.randint(0, 4, (256,))


def peak_of_step(**options: Any) -> tuple[Watching, list[torch.Tensor]]:
    model, optimizer, loss_of = made()
    watching = Watching()
    compiled = turret.compile(
        training(model, optimizer, loss_of), plugins=[watching], options=OPTIONS | options, fullgraph=True
    )
    for _ in range(2):
        compiled(*inputs())
    return watching, [p.detach() for p in model.parameters()]


def test_a_step_takes_the_memory_of_a_forward_and_a_backward():
    whole, weights = peak_of_step()
    assert any(RECOMPUTED in name for name in whole.names)
    saving, same = peak_of_step(partitioner="save_all")
    assert not any(RECOMPUTED in name for name in saving.names)
    torch.testing.assert_close(weights, same)
    _, _, loss_of = made()
    apart = Watching()
    turret.compile(loss_of, plugins=[apart], options=OPTIONS)(*inputs()).backward()
    assert whole.peaks["inference"] < 0.7 * saving.peaks["inference"]
    assert whole.peaks["inference"] < 1.1 * max(apart.peaks["forward"], apart.saved + apart.peaks["backward"])


def test_steps_that_compute_again_do_what_eager_does():
    _, weights = peak_of_step()
    model, optimizer, loss_of = made()
    step = training(model, optimizer, loss_of)
    for _ in range(2):
        step(*inputs())
    torch.testing.assert_close(weights, [p.detach() for p in model.parameters()])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_of_several_batches_are_eagers(dropout):
    def program(model: nn.Module) -> Any:
        def accumulate(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
            for x, y in batches:
                F.cross_entropy(F.dropout(model(x), dropout), y).backward()

        return accumulate

    model, _, _ = made()
    plain = copy.deepcopy(model)
    watching = Watching()
    options = OPTIONS | {"fallback_random": True}
    compiled = turret.compile(program(model), plugins=[watching], options=options, fullgraph=True)
    batches = [inputs() for _ in range(2)]
    for function, each in ((compiled, model), (program(plain), plain)):
        torch.manual_seed(3)
        function(batches)
        assert all(p.grad is not None for p in each.parameters())
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    assert any(RECOMPUTED in name for name in watching.names)
