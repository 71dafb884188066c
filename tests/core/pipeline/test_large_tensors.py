"""Elements behind the 2**31st of a tensor are reached, with static and with symbolic sizes."""

from __future__ import annotations

import mmap

import pytest
import torch

import turret

COUNT = 2**31 + 8
FAR = torch.tensor([2**31, COUNT - 1, 5, -2])


@pytest.fixture(scope="module")
def large():
    """A tensor of 2 GiB, of whose memory only the pages that are touched are there."""
    with mmap.mmap(-1, COUNT) as memory:
        made = torch.frombuffer(memory, dtype=torch.int8)
        made[-1], made[2**31], made[5] = 7, 3, 1
        yield made
        del made


PROGRAMS = {
    "the end": lambda x: x[-8:] + 1,
    "one": lambda x: x[2**31] * 2,
    "a part across": lambda x: x.narrow(0, 2**31 - 2, 6) + x[:6],
    "positions": lambda x: x[FAR] * 2,
    "far steps": lambda x: x[:: 2**28] + 1,
    "strides": lambda x: torch.as_strided(x, (3, 2), (2**30, 2)) + 1,
    "rows": lambda x: x.view(8, -1)[-2:, -3:] * 2,
    "columns": lambda x: x.view(-1, 8).t()[1:3, -2:] * 2,
    "a view of more": lambda x: x[-1:].expand(2**17, 2**17)[-1, -3:] + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_lies_far_in_a_tensor_is_read(name, dynamic, large):
    program = PROGRAMS[name]
    compiled = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    assert torch.equal(compiled(large), program(large))
