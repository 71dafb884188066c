"""Seeding reaches every generator that is in use."""

from __future__ import annotations

import torch

from turret.testing.corpus.seeding import seed_generators


def test_the_host_s_stream_is_that_of_torch_manual_seed() -> None:
    for seed in (0, 7, -1, 2**40):
        torch.manual_seed(seed)
        expected = torch.rand(3), torch.initial_seed()
        seed_generators(seed)
        assert torch.equal(torch.rand(3), expected[0]) and torch.initial_seed() == expected[1]


def test_with_an_accelerator_all_of_them_are_seeded(monkeypatch) -> None:
    seeds = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    seed_generators(3)
    assert seeds == [3]
