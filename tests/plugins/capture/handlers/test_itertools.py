"""Iterators of ``itertools`` give what Python's give, as lazily, and are of the same kinds when they leave the graph."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.capture.capture_lab import Observed, check

X = torch.arange(3.0)


def small(value):
    return value < 3


def ways():
    """Ways to make an iterator of another one, and of two."""
    one = {
        "cycle": itertools.cycle,
        "islice": lambda i: itertools.islice(i, 1, 6, 2),
        "islice_end": lambda i: itertools.islice(i, 3),
        "islice_backwards": lambda i: itertools.islice(i, 4, 2),
        "accumulate": itertools.accumulate,
        "accumulate_function": lambda i: itertools.accumulate(i, operator.mul, initial=2),
        "takewhile": lambda i: itertools.takewhile(small, i),
        "dropwhile": lambda i: itertools.dropwhile(small, i),
        "filterfalse": lambda i: itertools.filterfalse(small, i),
        "filterfalse_plain": lambda i: itertools.filterfalse(None, i),
        "starmap": lambda i: itertools.starmap(pow, [(n, 2) for n in i]),
        "pairwise": lambda i: itertools.pairwise(i),
        "permutations": lambda i: itertools.permutations(itertools.islice(i, 3), 2),
        "combinations": lambda i: itertools.combinations(itertools.islice(i, 4), 2),
        "with_replacement": lambda i: itertools.combinations_with_replacement(itertools.islice(i, 3), 2),
        "product": lambda i: itertools.product(itertools.islice(i, 3), repeat=2),
        "groupby": lambda i: ((k, list(g)) for k, g in itertools.groupby(i, small)),
        "tee": lambda i: itertools.tee(i)[1],
        "chain": lambda i: itertools.chain(i, (7, 8)),
    }
    two = {
        "compress": itertools.compress,
        "zip_longest": lambda i, j: itertools.zip_longest(i, itertools.islice(j, 2), fillvalue=9),
        "product_of_none": lambda i: itertools.product(i, repeat=0),
        "product_two": lambda i, j: itertools.product(itertools.islice(i, 2), itertools.islice(j, 2)),
    }
    if hasattr(itertools, "batched"):
        one["batched"] = lambda i: itertools.batched(i, 2)
    return one, two


ONE, TWO = ways()


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([*ONE, *TWO]),
    items=st.lists(st.integers(0, 5), max_size=7),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
    ends=st.booleans(),
)
def test_items_and_what_was_read_for_them_are_those_of_python(name, items, before, after, ends):
    """Some items, a graph break where one is asked for, more items, and what the iterator left of its source."""

    def program(x):
        source, other = iter(items), iter(items[::-1])
        made = ONE[name](source) if name in ONE else TWO[name](source, other)
        first = list(itertools.islice(made, before))
        left = list(itertools.islice(source, 1))
        y = x + len(first)
        if ends:
            print(end="")
        rest = list(itertools.islice(made, after))
        return y * 2, type(made).__name__, first, left, rest, list(source), list(other)

    check(program, X, breaks=None)


@pytest.mark.parametrize("name", sorted(set(ONE) - {"groupby", "tee"}))
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_an_iterator_that_leaves_the_graph_is_of_its_kind_and_stands_where_it_stood(name, count):
    def program(x):
        source = iter([1, 2, 2, 5, 0, 4])
        made = ONE[name](source)
        seen = [next(made, None) for _ in range(count)]
        return x + 1, seen, made, source

    expected, found = program(X), Observed(program)(X)
    assert type(found[2]) is type(expected[2])
    assert found[1] == expected[1]
    assert [next(found[2], None) for _ in range(8)] == [next(expected[2], None) for _ in range(8)]
    assert list(found[3]) == list(expected[3])


def test_iterators_of_tee_read_their_source_once():
    def program(x):
        read = []

        def source():
            for number in range(4):
                read.append(number)
                yield x + number

        one, two = itertools.tee(source())
        next(one)
        first = list(read)
        return first, next(one), next(two), next(two), next(two), read

    check(program, X, graphs=1)

    def leaves(x):
        one, two = itertools.tee(iter([1, 2, 3, 4]))
        return x + next(one), next(one), next(two), one, two

    found = Observed(leaves)(X)
    assert (list(found[3]), list(found[4])) == ([3, 4], [2, 3, 4])


def test_a_group_ends_with_the_next_one():
    def program(x):
        groups = itertools.groupby("aabbbc")
        (_, first), (key, second) = next(groups), next(groups)
        return x + 1, list(first), key, next(second), [(k, list(g)) for k, g in groups], list(second)

    check(program, X, graphs=1)


@pytest.mark.parametrize(
    "program",
    [
        lambda: itertools.islice([1], -1),
        lambda: itertools.islice([1], 0, 2, 0),
        lambda: itertools.combinations([1], -1),
        lambda: itertools.product([1], repeat=-1),
        lambda: itertools.cycle(3),
        lambda: itertools.accumulate(3),
        lambda: itertools.repeat(),
    ],
)
def test_wrong_arguments_are_errors_where_the_iterator_is_made(program):
    def function(x):
        try:
            program()
        except (TypeError, ValueError) as error:
            return x + 1, type(error).__name__

    check(function, X, breaks=None)
