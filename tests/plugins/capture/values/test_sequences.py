"""Lists and deques from before that grow: what is only appended to is captured once, whatever it held."""

from __future__ import annotations

import collections
import random

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(3.0)


@pytest.mark.parametrize("kind", [list, collections.deque])
def test_what_is_only_appended_to_is_captured_once_at_any_length(kind):
    def function(x, kept):
        y = x * 2
        kept.append(y.sum())
        kept.extend([y, 3])
        kept += (4,)
        return y * kept[-1] - kept[-3]

    observed, found, expected = Observed(function, fullgraph=True), kind(), kind()
    for number in range(6):
        assert_same(observed(X + number, found), function(X + number, expected))
        assert_same(list(found), list(expected))
    assert len(observed.graphs) == 1


def test_a_list_of_a_module_that_grows_beside_its_buffers_is_captured_once():
    class Running(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.history = []

        def forward(self, x):
            self.mean.mul_(0.9).add_(x, alpha=0.1)
            self.history.append(x.sum())
            return x - self.mean

    mine, plain = Running(), Running()
    observed = Observed(mine)
    for number in range(6):
        assert_same(observed(X + number), plain(X + number))
        assert_same(mine.history, plain.history)
    assert len(observed.graphs) == 1


def test_a_loop_that_a_break_cuts_has_one_capture_for_all_its_rounds():
    def function(x, rounds):
        kept = []
        for _ in rounds:
            x = x + 1
            kept.append(x.sum().item())
        return x, kept

    observed = Observed(function)
    for rounds in (4, 6):
        assert_same(observed(X, [None] * rounds), function(X, [None] * rounds))
    assert len(observed.graphs) <= 3


_LOOKS = {
    "length": lambda x, kept: x * len(kept),
    "truth": lambda x, kept: x + 1 if kept else x,
    "first": lambda x, kept: x * kept[0],
    "last": lambda x, kept: x * kept[-1],
    "before the last": lambda x, kept: x * kept[-2] if kept[-1] == 5 else x,
    "far from the end": lambda x, kept: x * kept[-len(kept)],
    "all": lambda x, kept: x + sum(kept),
    "loop": lambda x, kept: [x * v for v in kept],
    "pop": lambda x, kept: (x * kept.pop(0), kept),
    "twice": lambda x, kept: (kept.extend(kept), x)[1],
    "slice": lambda x, kept: (kept.__setitem__(slice(0, 1), [9, 9]), x)[1],
    "equal": lambda x, kept: x if kept == [1, 5] else x + 1,
    "among": lambda x, kept: x if 2 in kept else x + 1,
    "copy": lambda x, kept: (x, list(kept), kept.copy()),
    "insert": lambda x, kept: (kept.insert(1, 7), x)[1],
    "reverse": lambda x, kept: (kept.reverse(), x)[1],
}


_NEED_ITEMS = ("first", "last", "before the last", "far from the end", "pop", "insert")


@pytest.mark.parametrize("look", _LOOKS)
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_what_is_in_it_counts_as_soon_as_it_is_looked_at(look, first):
    def function(x, kept):
        if first:
            kept.append(5)
        result = _LOOKS[look](x, kept)
        if not first:
            kept.append(5)
        return result

    observed = Observed(function, fullgraph=True)
    for held in ([1], [1, 2], [2], [1, 2, 3], [1], [4, 2, 2]):
        mine, plain = list(held), list(held)
        assert_same(observed(X, mine), function(X, plain))
        assert_same(mine, plain)


def test_two_lists_that_are_one_on_another_call_are_told_apart():
    def function(x, one, other):
        one.append(1)
        return x * len(other)

    observed = Observed(function, fullgraph=True)
    assert_same(observed(X, [0], [0]), X)
    same = [0]
    assert_same(observed(X, same, same), X * 2)
    assert same == [0, 1]


def test_how_many_items_a_deque_takes_is_assumed():
    def function(x, kept):
        kept.append(1)
        return x * kept.maxlen

    observed = Observed(function, fullgraph=True)
    for most in (2, 3):
        kept = collections.deque([7, 8], most)
        assert_same(observed(X, kept), X * most)
        assert list(kept) == [7, 8, 1][-most:]


@pytest.mark.parametrize("seed", range(40))
def test_random_uses_of_a_list_leave_what_eager_leaves(seed):
    rng = random.Random(seed)
    names = [rng.choice(["append", "extend", *_LOOKS]) for _ in range(rng.randrange(1, 5))]

    def function(x, kept):
        results = []
        for name in names:
            if name == "append":
                kept.append(x.sum())
            elif name == "extend":
                kept.extend([3, x])
            elif name in _NEED_ITEMS and len(kept) < 3:
                results.append(len(kept))
            elif name not in ("all", "equal", "among"):
                results.append(_LOOKS[name](x, kept))
        return results

    observed = Observed(function)
    for _ in range(5):
        held = [rng.randrange(3) for _ in range(rng.randrange(4))]
        mine, plain = list(held), list(held)
        assert_same(observed(X, mine), function(X, plain))
        assert_same(mine, plain)


def test_the_whole_pipeline_appends_what_eager_appends():
    kept, plain = [], []
    compiled = turret.compile(lambda x, kept: (kept.append(x.sin()), x.cos())[1], options={"on_error": "raise"})
    for _ in range(3):
        assert_same(compiled(X, kept), X.cos())
        plain.append(X.sin())
    assert_same(kept, plain)
