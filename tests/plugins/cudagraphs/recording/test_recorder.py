"""Words of a recording count as addresses where all recordings over other memory say so, and not before."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from tests.plugins.cudagraphs.recording_machine import Machine
from turret.plugins.cudagraphs.recording.recorder import Item, Recorded, Recorder, other_host_memory

X: Item = ("input", 0)


def doubled(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x * 2)


def recorded(strays: int) -> Recorded:
    """A kernel over ``x``, which the recording of that number in each turn of four hands its first address."""
    machine, x, out, turns = Machine(), torch.arange(4.0), torch.zeros(4), [0]

    def run(tensors: Mapping[Item, torch.Tensor]) -> None:
        turns[0] = turns[0] % 4 + 1
        machine.launch("doubled", doubled, out, x if turns[0] == strays else tensors[X])

    recording_device, pool = machine.recording_device(), machine.pool(0)
    made, _ = Recorder(recording_device, pool, pool.checkpoint()).record(run, {X: x}, {})
    return made


def test_a_word_that_follows_in_all_recordings_is_an_address() -> None:
    made = recorded(strays=0)
    assert not made.pinned and [(word.node, word.offset) for word in made.words[X]] == [(0, 8)]


@pytest.mark.parametrize("strays", [2, 3])
def test_a_word_that_follows_in_one_recording_alone_is_none(strays: int) -> None:
    made = recorded(strays)
    assert not made.words and made.pinned[X].reason == "a third recording has its address in other words"


NBYTES = (16, 48, 136, 208, 512, 1008)


def test_what_is_allocated_on_the_host_can_be_made_to_lie_elsewhere() -> None:
    # In a process of its own: in one whose memory is in pieces, the allocator gives larger ones than it is asked for,
    # keeps no more of them at hand than of others, and finds them again wherever it looks.
    program = f"from {__name__} import NBYTES, shared_addresses; print(*map(shared_addresses, NBYTES))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shared = dict(zip(NBYTES, map(int, done.stdout.split()), strict=True))
    assert all(count <= 1 for count in shared.values()), shared  # one may be what another thread held meanwhile


def shared_addresses(nbytes: int) -> int:
    """How many of eight pieces lie where one of eight before did."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def addresses() -> set[int]:
        taken = [libc.malloc(nbytes) for _ in range(8)]
        for address in taken:
            libc.free(address)
        return set(taken)

    gc.disable()  # a collection lets go of things that lie there
    try:
        before = addresses()
        with other_host_memory():
            return len(before & addresses())
    finally:
        gc.enable()
