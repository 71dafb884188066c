"""Sets and dictionaries of weak references that existed before the call: read in one graph, and kept alive by none."""

from __future__ import annotations

import gc
import types
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X = torch.ones(3)


class Entry:
    def __init__(self, factor):
        self.factor = factor


class Equal(Entry):
    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


class World:
    """One container of each kind of the same objects, which it alone holds."""

    def __init__(self, count=2, kind=Entry):
        self.held = {f"e{n}": kind(n + 1) for n in range(count)}
        self.set = weakref.WeakSet(self.held.values())
        self.keys = weakref.WeakKeyDictionary({e: e.factor * 10 for e in self.held.values()})
        self.values = weakref.WeakValueDictionary(self.held)

    def add(self, name, entry):
        self.held[name] = self.values[name] = entry
        self.set.add(entry)
        self.keys[entry] = entry.factor

    def sizes(self):
        gc.collect()
        return len(self.set), len(self.keys), len(self.values)


PROGRAMS = {
    "member": lambda x, w, e: x + (e in w.set) + 2 * (e in w.keys),
    "stranger": lambda x, w, e: (x + 1, Entry(1) in w.set, Entry(1) in w.keys, w.keys.get(Entry(1), "none")),
    "no_weak_reference": lambda x, w, e: (x + 1, 3 in w.set, "e0" in w.keys, None in w.set),
    "item": lambda x, w, e: x * w.keys[e] if e in w.keys else x,
    "get": lambda x, w, e: x * w.keys.get(e, 7),
    "lengths": lambda x, w, e: x + len(w.set) + len(w.keys) * 10 + len(w.values) * 100,
    "truth": lambda x, w, e: x + 1 if w.set and w.keys and w.values else x,
    "set_items": lambda x, w, e: x + sum(o.factor for o in w.set),
    "keys": lambda x, w, e: [x * k.factor for k in w.keys] + [x * k.factor for k in w.keys.keys()],
    "values": lambda x, w, e: [x * v for v in w.keys.values()] + [x * o.factor for o in w.values.values()],
    "items": lambda x, w, e: [x * v * k.factor for k, v in w.keys.items()] + [k for k, _ in w.values.items()],
    "names": lambda x, w, e: (x + 1, list(w.values), sorted(w.values.keys())),
    "any": lambda x, w, e: x + any(o is e for o in w.set) + any(o is e for o in w.values.values()),
    "still_in": lambda x, w, e: x + sum(o in w.set for o in w.keys),
    "next": lambda x, w, e: x * next(iter(w.keys), e).factor,
    "named": lambda x, w, e: x + ("e0" in w.values) + len(w.values),
}


@pytest.mark.parametrize("name", PROGRAMS)
@given(st.lists(st.sampled_from(["ask", "drop", "other", "add", "change"]), max_size=5))
@settings(max_examples=4, deadline=None)
def test_what_is_left_is_read_in_one_graph_as_it_comes_and_goes(name, steps):
    program, world = PROGRAMS[name], World()
    observed = Observed(program, fullgraph=True)
    entry = next(iter(world.held.values()))
    for number, step in enumerate(["ask", *steps, "ask"]):
        if step == "drop" and world.held:
            entry = None
            world.held.popitem()
            entry = next(iter(world.held.values()), Entry(0))
            assert set(world.sizes()) == {len(world.held)}
        elif step == "other":
            entry = Entry(5)
        elif step == "add":
            world.add(f"n{number}", Entry(number))
        elif step == "change":
            entry.factor += 1
        assert_same(observed(X, world, entry), program(X, world, entry))


def test_compiled_calls_keep_nothing_alive_that_lies_in_a_container():
    world = World()
    for program in PROGRAMS.values():
        Observed(program, fullgraph=True)(X, world, world.held["e0"])
    world.held.clear()
    assert world.sizes() == (0, 0, 0)


def dropped_before(x, w, e):
    w.held.clear()
    return x + len(w.set), x * len(w.keys), len(w.values)


def dropped_between(x, w, e):
    before = len(w.set)
    w.held.popitem()
    return x + before, [k.factor for k in w.keys], len(w.values)


def changed_in_python(x, w, e):
    before = e in w.set
    w.set.discard(e)
    between = e in w.set
    w.set.add(e)
    return x + 1, before, between, e in w.set


def iterated_across_a_break(x, w, e):
    for found in w.set:
        x = x * found.factor
        turret.graph_break()
    return x


def changed_while_iterated(x, w, e):
    told = []
    for key in w.keys:
        told.append(key.factor)
        turret.graph_break()
        w.held.clear()
    return x + 1, told


@pytest.mark.parametrize(
    "program", [dropped_before, dropped_between, changed_in_python, iterated_across_a_break, changed_while_iterated]
)
def test_what_the_call_itself_changes_is_left_to_python(program):
    observed = Observed(program)
    for _ in range(3):
        mine, theirs = World(), World()
        expected = outcome(program, (X, theirs, None if "dropped" in program.__name__ else theirs.held["e0"]), {})
        found = outcome(observed, (X, mine, None if "dropped" in program.__name__ else mine.held["e0"]), {})
        assert_same(found, expected)
        assert mine.sizes() == theirs.sizes()
    assert observed.breaks


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("part", ["set", "keys", "values", "items"])
def test_a_generator_that_leaves_the_call_goes_on_where_it_was(part, steps):
    def program(x, w, steps):
        held = {"set": w.set, "keys": w.keys, "values": w.keys.values(), "items": w.keys.items()}[part]
        left = iter(held)
        told = [next(left, None) is None for _ in range(steps)]
        return x + 1, left, told

    world = World()
    _, left, told = Observed(program)(X, world, steps)
    _, expected, told_plain = program(X, world, steps)
    assert type(left) is type(expected) is types.GeneratorType and left.gi_code is expected.gi_code
    assert told == told_plain
    if 0 < steps:
        assert (left.gi_frame is None) == (expected.gi_frame is None)
    assert list(left) == list(expected)


def test_objects_with_a_hash_of_their_own_are_left_to_python():
    world = World(1, Equal)

    def program(x):
        return x + (Equal(3) in world.set), world.keys.get(Equal(3))

    observed = Observed(program)
    assert_same(observed(X), program(X))
    assert observed.breaks


@pytest.mark.parametrize("key", [3, "stranger"])
def test_a_key_that_is_not_there_raises_what_python_does(key):
    world, looked_for = World(), Entry(9) if key == "stranger" else key

    def program(x):
        return x * world.keys[looked_for]

    expected, found = outcome(program, (X,), {}), outcome(Observed(program), (X,), {})
    assert found[0] == expected[0] == "raised" and type(found[1]) is type(expected[1])
