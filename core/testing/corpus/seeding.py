"""The state of torch's random generators, set without what a process without accelerators does not need."""

from __future__ import annotations

import torch


def seed_generators(seed: int) -> None:
    """``torch.manual_seed``, of the generators that there are.

    Torch's own queues a call, with the whole stack as text, for each kind of accelerator that is not in use: 0.1 to
    10 ms, most of what drawing a program takes (torch 2.13).
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
