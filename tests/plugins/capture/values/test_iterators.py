"""Iterators over containers that change: what they give is eager's, with graph breaks meanwhile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed

ITERATORS = {
    "list": lambda items, table: iter(items),
    "reversed": lambda items, table: reversed(items),
    "enumerate": lambda items, table: enumerate(items),
    "zip": lambda items, table: zip(items, reversed(items), strict=False),
    "map": lambda items, table: map(lambda v: v + 1, items),
    "keys": lambda items, table: iter(table),
    "values": lambda items, table: iter(table.values()),
    "items": lambda items, table: iter(table.items()),
    "reversed tuple": lambda items, table: reversed((1, 2, 3)),
}
STEPS = ("next", "append", "clear", "pop", "insert", "set", "fill", "add", "drop", "again", "break")


def walk(x, kinds, steps):
    items, table, seen = [1, 2, 3], {0: 1, 1: 2, 2: 3}, []
    y = x + 1
    walkers = [ITERATORS[kind](items, table) for kind in kinds]
    for number, step in enumerate(steps):
        if step == "next":
            try:
                seen.append(next(walkers[number % len(walkers)], "none"))
            except RuntimeError as error:
                seen.append(str(error))
        elif step == "append":
            items.append(number)
        elif step == "clear":
            items.clear()
        elif step == "pop" and items:
            items.pop()
        elif step == "insert":
            items.insert(0, number)
        elif step == "set" and items:
            items[-1] = table[max(table)] = -number
        elif step == "fill":
            items[:] = [number] * 4
        elif step == "add":
            table[number + 10] = number
        elif step == "drop" and len(table) > 1:
            del table[max(table)]
        elif step == "again":
            table[0] = table.pop(0)
        elif step == "break":
            turret.graph_break()
    return seen, [type(walker).__name__ for walker in walkers], walkers, items, y


def ended(program, *given):
    seen, kinds, walkers, items, y = program(torch.ones(2), *given)
    items.append(77)
    rest = []
    for walker in walkers:
        try:
            rest.append(list(walker))
        except RuntimeError as error:
            rest.append(str(error))
    return seen, kinds, rest, items, y.tolist()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(ITERATORS)), min_size=1, max_size=3).map(tuple),
    st.lists(st.sampled_from((*STEPS, "next", "next")), max_size=9).map(tuple),
)
def test_an_iterator_sees_what_its_container_becomes(kinds, steps):
    assert ended(Observed(walk), kinds, steps) == ended(walk, kinds, steps)


@pytest.mark.parametrize("make", [iter, reversed])
def test_an_iterator_past_the_end_of_what_its_list_has_become_stays_there(make):
    def program(x, items):
        walker = make(items)
        next(walker), next(walker)
        items.clear()
        turret.graph_break()
        items.append(x + 1)
        return list(walker)

    found = Observed(program)(torch.ones(2), [1, 2, 3])
    assert len(found) == len(program(torch.ones(2), [1, 2, 3]))
