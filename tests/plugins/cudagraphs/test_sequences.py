"""Random sequences of calls, kept and dropped outputs, sizes, writes and failures give what eager gives."""

from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plugins.cudagraphs.sequences import play

QUICK = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("outputs", ["fresh", "pool", "legacy"])
@QUICK
@given(r=st.randoms(use_true_random=False))
def test_any_sequence_of_calls_gives_what_eager_gives(outputs: str, r: random.Random) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        play(r, outputs, length=20, threads=False)


@pytest.mark.parametrize("outputs", ["fresh", "pool", "legacy"])
def test_sequences_come_to_replays_of_each_kind(outputs: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = play(random.Random(0), outputs)
        for seed in range(1, 60):
            counts += play(random.Random(seed), outputs)
    assert counts["replays"] > 50 and counts["recorded again"] and counts["copied"] and counts["ValueError"]
    assert (counts["threads"] or outputs == "legacy") and (counts["any size"] or outputs != "fresh")
    assert counts["OSError"] and (outputs != "pool" or counts["overwritten"])
