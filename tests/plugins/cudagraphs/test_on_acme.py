"""Compiled functions on a device that records."""

from __future__ import annotations

import torch
from acme_world import World, on_acme, rand

import turret

GRAPHS = {"cudagraphs": True}


@on_acme
def test_a_replay_gives_what_a_call_gives_and_never_overwrites_it(world: World) -> None:
    def f(x, w):
        return torch.softmax(torch.relu(x @ w) + 1, -1), x * 2

    w = rand(16, 32)
    compiled = world.compile(f, **GRAPHS)
    kept = []
    for _ in range(5):
        x = rand(8, 16)
        kept.append((compiled(x, w), f(x, w)))
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected])
    print(turret.cudagraphs.report())
    assert turret.cudagraphs.report().replays == 4


@on_acme
def test_training_steps_are_eager_s(world: World) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("acme")
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("acme")
    other.load_state_dict(model.state_dict())
    compiled = world.compile(model, **GRAPHS)
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
    for _ in range(6):
        x = rand(5, 8)
        for run, optimizer in ((compiled, ours), (other, theirs)):
            optimizer.zero_grad()
            run(x).square().sum().backward()
            optimizer.step()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.cpu(), b.cpu())
    print(turret.cudagraphs.report())
    assert turret.cudagraphs.report().replays >= 8
