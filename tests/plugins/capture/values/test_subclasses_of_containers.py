"""Classes that derive from frozenset, deque and defaultdict: made in compiled code, and handed in."""

from __future__ import annotations

import collections

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, check

X = torch.arange(3.0)


class Names(frozenset):
    def twice(self):
        return [v * 2 for v in self]


class Queue(collections.deque):
    def append(self, value):
        super().append(value)
        self.appended = getattr(self, "appended", 0) + 1

    @property
    def last(self):
        return self[-1]


class Lists(collections.defaultdict):
    def __init__(self, *given):
        super().__init__(list, *given)


class Marked(collections.defaultdict):
    def __missing__(self, key):
        self[key] = made = key + "!"
        return made


def names(x):
    made = Names([30, 1, 20, 9, 17])
    found = made.union([4]), made - {1}, Names(made) == made, len(Names()), {made: x}[Names(made)], 9 in made
    return made, list(made), found, made.twice()


def names_of_a_set(x):
    return list(Names({40, 3, 11})), Names(frozenset([1])), x + 1


def a_set_of_a_tensor(x):
    made = Names([x])
    return len(made), x in made, next(iter(made)) + 1


def queues(x):
    made = Queue([1, 2], maxlen=2)
    made.append(x)
    made.rotate(1)
    made.extend([3])
    return made, Queue(made), made.maxlen, Queue("abc", 2), made.last, made.appended, Queue().maxlen


def too_short(x):
    try:
        return Queue([1], -1)
    except ValueError as error:
        return str(error), x + 1


def lists(x):
    made = Lists()
    made["q"].append(x)
    made["r"] += [1]
    return made, made["q"][0] + 1, list(made), made.default_factory is list, "z" in made, Lists({"a": [x]})["a"][0] * 2


def marked(x):
    made = Marked()
    return made["k"], made, made.default_factory, x + 1


@pytest.mark.parametrize(
    "program", [names, names_of_a_set, a_set_of_a_tensor, queues, too_short, lists, marked], ids=lambda p: p.__name__
)
def test_instances_that_are_made(program):
    for _ in range(2):
        found, expected = Observed(program, fullgraph=True)(X), program(X)
        assert_same(found, expected)
        assert repr(found) == repr(expected)


def test_sets_that_are_handed_in():
    def program(x, s):
        return x * len(s), "a" in s, sorted(s), s.twice(), s & {"a"}, {s: 1}[s], s <= {"a", "b", "c"}

    observed = Observed(program, fullgraph=True)
    for given in (Names("ab"), Names("ab"), Names("abc")):
        assert_same(observed(X, given), program(X, given))
    assert len(observed.graphs) == 2


def test_queues_that_are_handed_in():
    def program(x, q):
        q.append(x + 1)
        q.appendleft(7)
        return q[0], len(q), q.maxlen, q.last, q.appended, list(q)

    for limit in (None, 2, 3):
        check(program, X, Queue([1, 2], limit), calls=3, breaks=0)


def test_dicts_that_are_handed_in():
    def program(x, d):
        d["q"].append(x + 1)
        d["a"].append(2)
        return d["q"][0] + 1, len(d), d.default_factory is list

    observed, mine, theirs = Observed(program, fullgraph=True), Lists({"a": [1]}), Lists({"a": [1]})
    for _ in range(3):
        assert_same(observed(X, mine), program(X, theirs))
        assert_same(mine, theirs)
