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


class Holder:
    def __init__(self, iterator):
        self.iterator = iterator


SEQUENCES = st.one_of(
    st.integers(-2, 3).map(lambda first: lambda: iter(range(first, 60, 2))),
    st.integers(-2, 3).map(lambda first: lambda: itertools.count(first)),
    st.sampled_from([(0, 2), (3, 3), (0.5, 1), (2, 0.25), (2**62 - 2, 1), (2**70, 1)]).map(
        lambda counted: lambda: itertools.count(*counted)
    ),
    st.lists(st.floats(-3, 3), min_size=1, max_size=30).map(lambda items: lambda: iter(list(items))),
    st.lists(st.integers(-1, 3), max_size=30).map(lambda items: lambda: iter(tuple(items))),
    st.lists(st.integers(0, 9).map(lambda n: torch.full((2,), float(n))), max_size=30).map(lambda v: lambda: iter(v)),
    st.binary(max_size=30).map(lambda items: lambda: iter(items)),
)


def moving(x, holder, steps):
    seen = []
    for step in steps:
        if step == "next":
            seen.append(next(holder.iterator, None))
        elif step == "compute" and (item := next(holder.iterator, None)) is not None:
            x = x + item
        elif step == "loop":
            seen.append([item for _, item in zip(range(3), holder.iterator, strict=False)])
        elif step == "rest" and not isinstance(holder.iterator, itertools.count):
            seen.append(list(holder.iterator))
        elif step == "break":
            turret.graph_break()
    return x, seen


@given(SEQUENCES, st.lists(st.sampled_from(["next", "compute", "loop", "break", "rest"]), max_size=4).map(tuple))
@settings(max_examples=60, deadline=None)
def test_an_iterator_that_an_object_holds_goes_on_from_call_to_call(make, steps):
    observed, mine, theirs = Observed(moving), Holder(make()), Holder(make())
    for _ in range(4):
        assert_same(observed(X, mine, steps), moving(X, theirs, steps))
    assert_same(
        list(itertools.islice(mine.iterator, 3)), list(itertools.islice(theirs.iterator, 3)), "the iterator afterwards"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter(range(30)),
        lambda: itertools.count(),
        lambda: itertools.count(0.5, 0.25),
        lambda: iter([0.5 * n for n in range(30)]),
        lambda: iter(tuple(range(30))),
        lambda: iter([torch.full((2,), float(n)) for n in range(30)]),
        lambda: iter(bytes(range(30))),
    ],
)
def test_one_unit_serves_all_calls_that_move_an_iterator_on(make):
    class Model(torch.nn.Module):
        def __init__(self, iterator):
            super().__init__()
            self.iterator = iterator

        def forward(self, x):
            return x * 2 + next(self.iterator) - next(self.iterator)

    observed, plain = Observed(Model(make()), fullgraph=True), Model(make())
    for _ in range(10):
        assert_same(observed(X), plain(X))
    assert len(observed.graphs) == 1
    assert not observed.recompiles


def test_an_iterator_handed_in_that_goes_on_is_compiled_twice():
    observed, plain = Observed(lambda x, i: x + next(i), fullgraph=True), iter(range(30))
    iterator = iter(range(30))
    for _ in range(10):
        assert_same(observed(X, iterator), X + next(plain))
    assert len(observed.graphs) == 2


def test_iterators_over_a_list_see_its_changes():
    def program(x, items, first, second):
        taken = [next(first.iterator, None)]
        items.append(x * 3)
        return x + 1, taken, list(first.iterator), next(second.iterator, None), list(first.iterator)

    observed = Observed(program)
    for shared in (False, True, True, False):
        results = []
        for call in (observed, program):
            items, others = [X, X * 2], [X * 5]
            first = Holder(iter(items if shared else others))
            second = first if shared else Holder(iter(items))
            list(itertools.islice(first.iterator, 2))
            results.append((call(X, items, first, second), items, list(second.iterator)))
        assert_same(*results)


def test_an_iterator_over_a_class_of_the_programs_is_left_to_python():
    class Text(str):
        def __getitem__(self, key):
            raise AssertionError("iterators do not ask for items")

    observed, holder = Observed(lambda x, holder: (x + 1, next(holder.iterator))), Holder(iter(Text("abc")))
    for letter in "ab":
        assert_same(observed(X, holder), (X + 1, letter))


def test_two_iterators_may_be_one():
    def program(x, holder, iterator):
        return x + next(holder.iterator), next(iterator), next(holder.iterator)

    observed = Observed(program)
    for same in (False, True, False):
        results = []
        for call in (observed, program):
            holder = Holder(iter(range(20)))
            results.append(call(X, holder, holder.iterator if same else iter(range(20))))
        assert_same(*results)
