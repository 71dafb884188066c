"""The identity of a tensor is that of the program's, not that of the fake tensor which stands for it at capture."""

from __future__ import annotations

import pytest
import torch

import turret

PROGRAMS = {
    "method": lambda x: (x.__hash__(), x + 1),
    "class": lambda x: (torch.Tensor.__hash__(x), x + 1),
    "function": lambda x: (hash(x), x + 1),
    "both": lambda x: (x.__hash__() == hash(x), x + 1),
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hash_is_that_of_the_tensor_that_was_given(name, fullgraph):
    program = PROGRAMS[name]
    fast = turret.compile(program, fullgraph=fullgraph, options={"cache": False})
    given = [torch.ones(2) for _ in range(3)]
    for x in given:
        assert fast(x)[0] == program(x)[0]
