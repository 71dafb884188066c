"""Positions outside of a dimension: the exception is eager's, after the effects of the lines before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

_TAKES: dict[str, Callable] = {
    "select": lambda x, n: torch.select(x, 1, n),
    "select by name": lambda x, n: x.select(dim=0, index=n),
    "select_scatter": lambda x, n: torch.select_scatter(x, x[0], 0, n),
    "item": lambda x, n: x[n],
    "items": lambda x, n: x[:, n],
    "list": lambda x, n: x[[n] * x.shape[1]],
    "list behind a slice": lambda x, n: x[:, [0, n]],
    "nested list": lambda x, n: x[[[0, n], [n, 1]]],
    "tensor of constants": lambda x, n: x[torch.tensor([[0], [9]])] if n > 3 else x[torch.tensor([[0], [1]])],
    "write to a list": lambda x, n: x.__setitem__([n, 0], 2.0),
    "write": lambda x, n: x.__setitem__((n, slice(1)), 2.0),
    "view write": lambda x, n: x.select(1, n).add_(1),
}


@pytest.mark.parametrize("name", sorted(_TAKES))
def test_the_lines_before_an_index_out_of_range_have_had_their_effects(name):
    def program(x, n, log):
        log.append(n)
        x.mul_(2)
        return _TAKES[name](x, n)

    observed = Observed(program)
    for n in (0, 1, -1, 4, -5, 0, -2, 7):
        mine, theirs = (torch.arange(6.0).reshape(2, 3), n, []), (torch.arange(6.0).reshape(2, 3), n, [])
        found, expected = outcome(observed, mine, {}), outcome(program, theirs, {})
        assert found[0] == expected[0], (found, expected)
        if expected[0] == "returned":
            assert_same(found[1], expected[1])
        assert_same(mine, theirs, "arguments")


@pytest.mark.parametrize(
    "index",
    [
        lambda x: (torch.arange(2)[:, None], torch.arange(3)),
        lambda x: torch.tensor(1),
        lambda x: (slice(None), torch.tensor([0, 2])),
        lambda x: (torch.arange(x.shape[0]), torch.tensor(0)),
    ],
)
def test_an_index_that_is_known_needs_no_break(index):
    def program(x):
        return x[index(x)] * 2

    observed = Observed(program)
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(2):
        assert_same(observed(x), program(x))
    assert len(observed.graphs) == 1 and not observed.breaks
