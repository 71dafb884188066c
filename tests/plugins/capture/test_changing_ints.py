"""Integers of modules that change from call to call: symbols of the graph once they were seen to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(12.0).reshape(3, 4)


class Scaled(nn.Module):
    def __init__(self, form: Callable) -> None:
        super().__init__()
        self.form, self.n, self.table = form, 2, [3, 5]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(self, x)


def _counts(module: Scaled, x: torch.Tensor) -> torch.Tensor:
    module.n += 1
    return x * module.n


FORMS = [
    lambda m, x: x * m.n,
    lambda m, x: x[:, -m.n :],
    lambda m, x: x.repeat(abs(m.n) % 3 + 1, 1) if m.n < 4 else x - m.n,
    lambda m, x: torch.full((3,), m.n) + x.sum(),
    lambda m, x: (x, m.n, [m.n * 2], m.n > 3),
    lambda m, x: x.sum(m.n % 2),
    lambda m, x: x * m.table[m.n % 2],
    _counts,
]


@settings(max_examples=12, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    numbers=st.lists(st.integers(-5, 7) | st.sampled_from([2**62, 2**63 + 1]), min_size=2, max_size=6),
    dynamic=st.sampled_from([None, False, True]),
)
def test_calls_give_what_eager_gives_whatever_the_attribute_becomes(form, numbers, dynamic):
    mine, plain = Scaled(form), Scaled(form)
    observed = Observed(mine.__call__, dynamic=dynamic)
    for number in numbers:
        mine.n = plain.n = number
        try:
            expected = plain(X)
        except Exception as error:
            with pytest.raises(type(error)):
                observed(X)
        else:
            assert_same(observed(X), expected)
        assert mine.n == plain.n


@pytest.mark.parametrize("form", [FORMS[0], _counts])
def test_an_attribute_that_changes_is_captured_twice(form):
    mine = Scaled(form)
    observed = Observed(mine.__call__, fullgraph=True)
    for number in range(2, 12):
        mine.n = number
        observed(X)
    assert len(observed.graphs) == 2


def test_an_attribute_is_what_it_is_where_nothing_is_dynamic():
    mine = Scaled(FORMS[0])
    observed = Observed(mine.__call__, dynamic=False)
    for number in range(2, 6):
        mine.n = number
        observed(X)
    assert len(observed.graphs) == 4


USES_OF_LARGE_INTS = {
    "hands it on": lambda n: (n, [n], {"a": n}, n is None, isinstance(n, int), type(n) is int, callable(n)),
    "adds": lambda n: (1 + n, n + 1),
    "compares": lambda n: (n > 2**101, 3 < n, n == 3, n == n),
    "branches": lambda n: "some" if n else "none",
    "writes": lambda n: (f"{n:x}", "%032x" % n, str(n)),
    "looks up": lambda n: (n in [1, 2], {n: 1}, n in {1: 2}),
    "asks a method": lambda n: n.bit_length(),
    "computes with a part": lambda n: X * (n % 3),
}


@pytest.mark.parametrize("use", USES_OF_LARGE_INTS)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_int_too_large_for_a_graph_is_unknown_once_it_changed(use, fullgraph):
    def program(x, n):
        y = x + 1
        return y * 2, USES_OF_LARGE_INTS[use](n)

    observed = Observed(program, fullgraph=fullgraph)
    for number in range(6):
        large = 2**100 + 7 * number
        assert_same(observed(X, large), program(X, large))
    assert_same(observed(X, 5), program(X, 5))
    if (
        not fullgraph
    ):  # where nothing breaks the graph it is a constant of one capture each, as an int that never changed
        assert len(observed.recompiles) <= 2 and not observed.fallbacks
    if use == "hands it on":
        assert len(observed.graphs) <= 2
