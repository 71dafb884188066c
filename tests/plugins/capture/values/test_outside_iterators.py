"""Iterators over numbers and text, and proxies of weak references, that existed before the call."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X = torch.ones(2)
LARGE = range(2**64, 2**64 + 5)


def taking(x, iterator, steps):
    seen = []
    for step in steps:
        if step == "break":
            turret.graph_break()
        elif step == "next":
            seen.append(next(iterator, None))
        elif step == "loop":
            seen.append([item for item, _ in zip(iterator, range(2), strict=False)])
        else:
            seen.append(list(iterator))
    return x + 1, seen


@given(
    st.sampled_from([range(4), range(7, 0, -3), range(0), LARGE, "abc", "a\u00e4\U0001f600", b"xyz", ""]),
    st.integers(0, 3),
    st.lists(st.sampled_from(["next", "loop", "rest", "break"]), max_size=4).map(tuple),
)
@settings(max_examples=40, deadline=None)
def test_iterators_go_on_where_they_were_and_stay_where_the_program_left_them(items, taken, steps):
    observed = Observed(taking)
    for _ in range(2):
        mine, theirs = iter(items), iter(items)
        for iterator in (mine, theirs):
            list(itertools.islice(iterator, taken))
        assert_same(observed(X, mine, steps), taking(X, theirs, steps))
        assert_same(list(mine), list(theirs))


def test_an_iterator_over_many_numbers_is_not_written_out():
    observed = Observed(taking, fullgraph=True)
    iterator = iter(range(10**12))
    for number in range(3):
        assert observed(X, iterator, ("next",))[1] == [number]
    assert not observed.breaks


def test_the_iterator_of_a_text_is_followed():
    observed = Observed(lambda x, text: x + (next(text.__iter__()) == "a"), fullgraph=True)
    assert_same(observed(X, "ab"), X + 1)
    assert_same(observed(X, "ba"), X + 0)


class Held:
    def __init__(self, value):
        self.value, self.calls = value, 0

    def called(self, by):
        self.calls += 1
        return self.value * by

    def __len__(self):
        return self.calls

    def __eq__(self, other):
        return isinstance(other, Held) and self.calls == other.calls

    __hash__ = None


@pytest.mark.parametrize(
    "program",
    [
        lambda x, held: (x + held.value, held.called(3), held.calls),
        lambda x, held: (setattr(held, "value", x * 2), held.value + 1, bool(held), type(held), isinstance(held, Held)),
        lambda x, held: (held == held, held == Held(x), held is held, x + 1),
        lambda x, held: (delattr(held, "value"), hasattr(held, "value"), x + 1),
        lambda x, held: held.missing,
    ],
)
def test_a_proxy_has_the_attributes_of_its_object(program):
    observed, (mine, theirs) = Observed(program), (Held(X), Held(X))
    for _ in range(2):
        found = outcome(observed, (X, weakref.proxy(mine)), {})
        assert_same(found, outcome(program, (X, weakref.proxy(theirs)), {}))
        assert_same(vars(mine), vars(theirs))
        mine.value = theirs.value = X + 1
    assert not observed.breaks


def test_a_proxy_itself_is_handed_on_and_may_stand_for_another_object():
    observed = Observed(lambda x, held: (held, held.value + x), fullgraph=True)
    for value in (X + 1, X * 2):
        held = Held(value)
        proxy = weakref.proxy(held)
        found = observed(X, proxy)
        assert found[0] is proxy
        assert_same(found[1], value + X)
    assert len(observed.graphs) == 1
