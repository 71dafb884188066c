"""Words of a recording count as addresses where all recordings over other memory say so, and not before."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from recording_machine import Machine

from turret.plugins.cudagraphs.recorder import Item, Recorded, Recorder

X: Item = ("input", 0)


def doubled(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x * 2)


def recorded(strays: int) -> Recorded:
    """A kernel over ``x``, which the recording of that number in each turn of four hands its first address."""
    machine, x, out, turns = Machine(), torch.arange(4.0), torch.zeros(4), [0]

    def run(tensors: Mapping[Item, torch.Tensor]) -> None:
        turns[0] = turns[0] % 4 + 1
        machine.launch("doubled", doubled, out, x if turns[0] == strays else tensors[X])

    place, pool = machine.place(), machine.pool(0)
    made, _ = Recorder(place, pool, pool.checkpoint()).record(run, {X: x}, {})
    return made


def test_a_word_that_follows_in_all_recordings_is_an_address() -> None:
    made = recorded(strays=0)
    assert not made.pinned and [(word.node, word.offset) for word in made.words[X]] == [(0, 8)]


@pytest.mark.parametrize("strays", [2, 3])
def test_a_word_that_follows_in_one_recording_alone_is_none(strays: int) -> None:
    made = recorded(strays)
    assert not made.words and made.pinned[X].reason == "a third recording has its address in other words"
