"""Generators and lazy iterators of the program's that were not asked for anything yet are followed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from tests.plugins.capture.capture_lab import Observed, assert_captured, assert_same, outcome


def counted(n: int) -> Iterator[torch.Tensor]:
    for number in range(n):
        yield torch.ones(number + 1) * number


def delegating(first: Any, *rest: Any, scale: int = 1, **named: Any) -> Iterator[Any]:
    yield first
    yield from rest
    yield scale
    yield from named.values()


def left_of(iterator: Iterator[Any]) -> list[Any]:
    return list(itertools.islice(iterator, 20))


def check_iterators(function: Callable, makers: list[Callable[[], Any]]) -> Observed:
    """Results, and what each iterator still gives afterwards, are the same as plain."""
    observed = Observed(function)
    for make in makers:
        mine, theirs = make(), make()
        found, expected = outcome(observed, (mine,), {}), outcome(function, (theirs,), {})
        assert found[0] == expected[0], found
        assert_same(found[1], expected[1])
        assert_same(left_of(mine), left_of(theirs))
    return observed


def all_of(items: Iterator[Any]) -> list[Any]:
    return [item * 2 for item in items]


def two_of(items: Iterator[Any]) -> Any:
    return next(items) + 1, next(items) + 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: counted(3),
        lambda: delegating(torch.ones(2), 3, torch.zeros(1), scale=4, more=5),
        lambda: (torch.ones(1) * n for n in (1, 2, 3)),
        lambda: itertools.chain(counted(2), [torch.ones(3)], counted(1)),
        lambda: filter(lambda v: len(v) > 1, counted(3)),
        lambda: map(torch.add, counted(3), [0, 1, 2, 3]),
        lambda: (a + b for a, b in zip(counted(2), [1, 2], strict=False)),
    ],
)
def test_an_iterator_that_is_handed_in_is_captured_once_and_is_at_its_end_afterwards(make):
    observed = check_iterators(all_of, [make] * 3)
    assert len(observed.graphs) == 1 and not observed.breaks
    assert_captured(observed)


LEFT_WAITING = [
    lambda: counted(4),
    lambda: itertools.chain(counted(1), counted(3)),
    lambda: map(torch.add, counted(3), (n for n in range(2))),
    lambda: (a + b for a, b in zip(counted(3), counted(2), strict=False)),
    lambda: iter(()),
]


@pytest.mark.parametrize("make", LEFT_WAITING)
def test_an_iterator_that_is_left_in_the_middle_is_there_afterwards(make):
    check_iterators(two_of, [make] * 3)


def test_a_generator_that_was_asked_before_is_not_taken_for_one_that_was_not():
    def begun() -> Iterator[Any]:
        made = counted(3)
        next(made)
        return made

    check_iterators(all_of, [lambda: counted(3), begun, lambda: counted(3), begun])


def test_a_strict_zip_of_unequal_lengths_raises():
    def pairs(items: Iterator[Any]) -> list[Any]:
        return [a * b for a, b in items]

    makers = [lambda: zip(counted(2), counted(2), strict=True), lambda: zip(counted(2), counted(2), strict=False)]
    check_iterators(pairs, [*makers, lambda: zip(counted(2), counted(1), strict=True)])


def test_generators_made_ahead_of_a_graph_break_are_followed_behind_it():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    def f(x):
        some, others = module.parameters(), module.named_parameters()
        scale = 2 if bool(x.sum() > 0) else 3
        results = [(name, (p * scale + q).sum()) for p, (name, q) in zip(some, others, strict=False)]
        return results, next(some, None), next(others, None)

    observed = Observed(f)
    for sign in (1, 1, -1, -1):
        x = torch.ones(2) * sign
        assert_same(observed(x), f(x))
    assert len(observed.graphs) == 3


def test_a_generator_whose_run_would_do_something_twice_is_left_to_python():
    seen: list[int] = []

    def noting(n: int) -> Iterator[int]:
        for number in range(n):
            seen.append(number)
            yield number

    def f(x):
        made = noting(3)
        y = x + 1 if bool(x.sum() > 0) else x
        return y * next(made), next(made), made

    observed = Observed(f)
    for _ in range(2):
        y, number, rest = observed(torch.ones(1))
        assert (y.item(), number, list(rest)) == (0, 1, [2])
    assert seen == [0, 1, 2] * 2


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize(
    "averaging",
    [
        {},
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
        {"avg_fn": lambda average, new, count: average + (new - average) / (count + 1)},
    ],
)
def test_averaged_models_are_updated_by_five_graphs(averaging, use_buffers):
    def build() -> tuple[nn.Module, swa_utils.AveragedModel]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return model, swa_utils.AveragedModel(model, use_buffers=use_buffers, **averaging)

    (model, mine), (other, theirs) = build(), build()
    observed = Observed(mine.update_parameters)
    for step in range(5):
        for each in (model, other):
            with torch.no_grad():
                [p.add_(step) for p in each.parameters()]
        observed(model)
        theirs.update_parameters(other)
        assert_same(mine.state_dict(), theirs.state_dict())
    assert len(observed.graphs) == 5  # the comparison, and two ways with a break in each
    assert_captured(observed)
