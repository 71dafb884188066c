"""``types.SimpleNamespace``: objects of the program's and new ones, and classes that derive from it."""

from __future__ import annotations

import types

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(3.0)


class Config(types.SimpleNamespace):
    scale = 2

    def __init__(self, **given):
        super().__init__(**given)
        self.made = True

    def total(self):
        return self.scale + len(vars(self))


def working(x, outer, steps):
    """Runs steps on a namespace of the caller's or on a new one, and says what it saw."""
    seen = []
    new = type(outer)(a=1)
    for what, name, where in steps:
        space = outer if where else new
        if what == "set":
            setattr(space, name, x + len(seen))
        elif what == "number":
            setattr(space, name, len(seen))
        elif what == "delete":
            try:
                delattr(space, name)
            except AttributeError as error:
                seen.append(str(error))
        elif what == "get":
            try:
                seen.append(getattr(space, name))
            except AttributeError as error:
                seen.append(str(error))
        elif what == "break":
            turret.graph_break()
        else:
            seen.append((list(vars(space)), len(space.__dict__), name in vars(space), isinstance(space, Config)))
    return x * 2, new, seen


names = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["set", "number", "delete", "get", "vars", "break"])


@given(
    st.sampled_from([types.SimpleNamespace, Config]),
    st.dictionaries(names, st.integers(0, 3), max_size=2),
    st.lists(st.tuples(kinds, names, st.booleans()), max_size=5).map(tuple),
)
@settings(max_examples=40, deadline=None)
def test_attributes_are_what_they_are_without_compiling(kind, attributes, steps):
    observed = Observed(working)
    for _ in range(2):
        mine, theirs = kind(**attributes), kind(**attributes)
        got, expected = observed(X, mine, steps), working(X, theirs, steps)
        assert_same([got[0], vars(got[1]), got[2]], [expected[0], vars(expected[1]), expected[2]])
        assert type(got[1]) is kind
        assert_same(vars(mine), vars(theirs))


@given(st.dictionaries(names, st.integers(0, 1), max_size=2), st.dictionaries(names, st.integers(0, 1), max_size=2))
@settings(max_examples=30, deadline=None)
def test_namespaces_are_compared_by_their_attributes(left, right):
    def compare(x, other):
        mine = types.SimpleNamespace(**left)
        same_kind = Config(**left) == Config(**right)
        return x + 1, mine == other, mine != other, other == mine, same_kind, mine == dict(left), repr(mine)

    observed = Observed(compare, fullgraph=True)
    assert_same(observed(X, types.SimpleNamespace(**right)), compare(X, types.SimpleNamespace(**right)))


def test_a_namespace_that_counts_is_captured_twice():
    def step(x, trainer):
        trainer.step += 1
        return x * trainer.config.lr + trainer.step

    observed = Observed(step, fullgraph=True)
    mine, theirs = (types.SimpleNamespace(step=3, config=types.SimpleNamespace(lr=0.5)) for _ in range(2))
    for _ in range(5):
        assert_same(observed(X, mine), step(X, theirs))
    assert mine == theirs
    assert len(observed.graphs) == 2


def test_a_class_of_namespaces_has_its_methods():
    observed = Observed(lambda x: x * Config(a=1).total(), fullgraph=True)
    assert_same(observed(X), X * 4)
