"""Objects that hash by identity, as keys and members: two arguments at capture may be one object at the next call."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same


class Plain:
    pass


class Hashed:
    def __hash__(self):
        return 7


KNOWN = Plain()
WEIGHT = torch.nn.Parameter(torch.ones(2))
X = torch.ones(2)


def members(a, b, x):
    return x * len({a, b})


def key_found(a, b, x):
    d = {a: 1}
    return x * (b in d), d.get(b)


def key_set(a, b, x):
    d = {}
    d[a], d[b] = 2, 3
    return x * sum(d.values())


def key_deleted(a, b, x):
    d = {a: 2, b: 3}
    del d[a]
    return x * len(d)


def added(a, b, x):
    s = set()
    for o in (a, b, KNOWN, WEIGHT):
        s.add(o)
    return x * len(s)


def joined(a, b, x):
    return x * len({a} | {b}), x * len({a} & {b}), {a} == {b}, {a} <= {b}


def dicts_compared(a, b, x):
    return x + ({a: 1} == {b: 1})


def kept(a, b, x):
    return x * len(dict.fromkeys([a, b])), len(set([a, b])), len(frozenset((a, b)))


PROGRAMS = [members, key_found, key_set, key_deleted, added, joined, dicts_compared, kept]
OBJECTS = {
    "instances": lambda: [Plain(), KNOWN, Plain()],
    "hashed": lambda: [Hashed(), Hashed()],
    "modules": lambda: [nn.ReLU(), nn.ReLU()],
    "tensors": lambda: [torch.ones(2), torch.ones(2)],
    "tensors of one memory": lambda: [t := torch.ones(2), t.detach()],
    "parameters": lambda: [nn.Parameter(torch.ones(2)), WEIGHT],
    "functions": lambda: [lambda: 1, lambda: 1],
    "classes": lambda: [type("C", (), {}), type("C", (), {})],
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_object_at_two_places_is_one_key(program, kind):
    objects = OBJECTS[kind]()
    for calls in (itertools.product(objects, repeat=2), reversed([*itertools.product(objects, repeat=2)])):
        observed = Observed(program)
        for a, b in calls:
            assert_same(observed(a, b, X), program(a, b, X))


class Nameless:
    """An object whose text is that of all others of its class."""

    def __repr__(self):
        return "Nameless"


FIRST, SECOND = Nameless(), Nameless()


@pytest.mark.parametrize("keys", [(FIRST, SECOND), (1, "1"), (True, "True"), ((1,), "(1,)")])
def test_keys_of_one_text_hold_what_each_holds(keys):
    def program(d, n, x):
        one, two = keys
        return d[one] * 2 + x.sum(), d[two] - 1, d[one].shape[0] + 10 * d[two].shape[0], x * n[one] - n[two]

    observed = Observed(program)
    one, two = keys
    for a, b in ((3, 4), (4, 3), (5, 5), (6, 2), (7, 9)):
        tensors, numbers = {one: torch.arange(a), two: torch.arange(b)}, {one: a + 0.5, two: b}
        assert_same(observed(tensors, numbers, X), program(tensors, numbers, X))
