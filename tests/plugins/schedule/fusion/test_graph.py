"""Steps stay in an order that keeps dependencies while groups are joined."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.plugins.schedule.fusion.graph import StepGraph


def is_acyclic(parts: list[set[int]], after: dict[int, list[int]]) -> bool:
    """Whether some order of the parts keeps dependencies: those without anything before them go, until none is left."""
    left = list(parts)
    while left:
        inside = set().union(*left)
        blocked = {later for n in inside for later in after[n] if not any({n, later} <= p for p in left)}
        free = [p for p in left if not p & blocked]
        if not free:
            return False
        left = [p for p in left if p not in free]
    return True


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_two_groups_make_a_cycle_exactly_where_no_order_of_steps_is_left(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 10))
    pairs = list(itertools.combinations(range(count), 2))
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count))
    after = {n: [b for a, b in edges if a == n] for n in range(count)}
    graph = StepGraph(dict.fromkeys(range(count)), {}, after)
    parts = [{n} for n in range(count)]
    for _ in range(data.draw(st.integers(1, count - 1))):
        one, other = data.draw(st.lists(st.sampled_from(parts), min_size=2, max_size=2, unique_by=id))
        joined = [p for p in parts if p is not one and p is not other] + [one | other]
        groups = [SimpleNamespace(first=min(p)) for p in (one, other)]
        cycle = not is_acyclic(joined, after)
        assert graph.would_cycle(*groups) == cycle
        if not cycle:
            graph.join(*groups)
            parts = joined
        assert all(graph.places[a] <= graph.places[b] for a, b in edges)
        assert {frozenset(step) for step in graph.steps if step} == set(map(frozenset, parts))


def test_groups_that_span_steps_outside_of_the_two_that_are_joined_count() -> None:
    def program(c, w, v, s, e, x, y, z):
        tanh = (c * w).tanh()
        product = (tanh.unsqueeze(0) @ v).squeeze(0)
        spread = y.expand(3)
        scaled = x * s
        row = scaled.unsqueeze(0)
        back = (row @ v.t()).squeeze(0) * (1 - tanh * tanh)
        return z + spread * e + back * w, back * c, row.t() @ row, (x * product).sum(), spread * c

    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in ((3,), (3,), (3, 3), (), (3,), (3,), (), (3,))]
    found = turret.compile(program, options={"on_error": "raise", "cache": False})(*args)
    torch.testing.assert_close(found, program(*args))
