"""Containers that are filled from something that looks at them while it is asked for items."""

from __future__ import annotations

import collections

import pytest
import torch

import turret


def lists(x):
    y = [1]
    y.extend(z + y[-1] for z in range(3))
    y += (z + len(y) for z in range(2))
    return x + 1, y


def deques(x):
    y = collections.deque([1], maxlen=4)
    y.extendleft(map(lambda z: z + y[0], range(3)))
    y.extend(z + len(y) + y[0] for z in range(4))
    y.extend(y)
    return x + 1, list(y)


def sets(x):
    y = {1}
    y.update((len(y) + 10 * z for z in range(3)), [7], {8})
    return x + 1, sorted(y)


def dicts(x):
    y = {}
    y.update((z, len(y)) for z in range(3))
    y.update({"a": x})
    y |= [(5, len(y))]
    return x + 1, y


def failing(x):
    y = {}
    try:
        y.update((z, 1 // (2 - z)) for z in range(4))
    except ZeroDivisionError:
        pass
    return x + 1, y


@pytest.mark.parametrize("program", [lists, deques, sets, dicts, failing])
def test_what_was_added_is_seen_by_what_comes_after(program):
    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    expected, found = program(torch.ones(2)), compiled(torch.ones(2))
    assert torch.equal(found[0], expected[0]) and repr(found[1]) == repr(expected[1])
