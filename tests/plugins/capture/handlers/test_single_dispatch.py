"""``functools.singledispatch``: the implementation for a class is followed, and asked for again by each call."""

from __future__ import annotations

import functools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.ones(2)
KINDS = {"int": int, "str": str, "list": list, "object": object}
VALUES = (1, True, "text", [X], (1, 2), X, None)


class Scaler:
    @functools.singledispatchmethod
    def scale(self, by, x):
        return x

    @scale.register
    def _(self, by: int, x):
        return x * by


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(VALUES)), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_what_is_registered_later_answers_from_then_on(steps):
    @functools.singledispatch
    def function(value, x):
        return x + 1

    def program(x, value):
        return function(value, x), Scaler().scale(value, x)

    observed = Observed(program, fullgraph=True)
    for number, (kind, value) in enumerate(steps):
        assert_same(observed(X, value), program(X, value))
        function.register(KINDS[kind], lambda value, x, number=number: x * (number + 2))
        assert_same(observed(X, value), program(X, value))
