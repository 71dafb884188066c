"""The identity of a tensor is that of the program's, not that of the fake tensor which stands for it at capture."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

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


class Plain:
    pass


def doubled_once(x, given):
    memo = {}

    def walk(value):
        if id(value) not in memo:
            memo[id(value)] = value * 2 if isinstance(value, torch.Tensor) else [walk(part) for part in value]
        return memo[id(value)]

    y = x + 1
    return walk([y, [y, y * 2], y]), len(memo)


def told_apart(x, given):
    y, made, plain = x * 2, [x], Plain()
    seen = {id(y): "y", id(made): "made", id(plain): "plain"}
    made.append(y)
    same = id(y) == id(y.contiguous()), id(y) != id(y.view(-1)), id(plain) == id(Plain())
    return y, same, [seen.get(id(value)) for value in (y, made, plain, x + 1)], len({id(y), id(made), id(y)})


@pytest.mark.parametrize("program", [doubled_once, told_apart], ids=lambda p: p.__name__)
def test_the_id_of_an_object_that_the_graph_makes_tells_it_from_others(program):
    observed = Observed(program, fullgraph=True)
    for scale in (1, 2):
        x = torch.arange(4.0) * scale
        assert_same(observed(x, None), program(x, None))


def test_an_id_that_leaves_the_graph_is_that_of_the_object_that_leaves_it():
    def program(x, kept):
        y = x * 2
        kept[id(y)] = y
        return x + 1

    kept: dict[int, torch.Tensor] = {}
    Observed(program, fullgraph=True)(torch.ones(2), kept)
    assert [id(value) for value in kept.values()] == list(kept)


def test_what_an_id_is_as_a_number_breaks_the_graph():
    def program(x):
        y = x * 2
        return y, id(y) > 0, id(y) % 1

    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))
