"""Sizes that are 0 in some calls and not in others, be they a symbol or an expression of one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import turret
from tests.plugins.capture.capture_lab import outcome

OPS = {
    "softmax": lambda y: F.softmax(y, 0),
    "log_softmax": lambda y: F.log_softmax(y, 0),
    "layer_norm": lambda y: F.layer_norm(y, (2,)),
    "roll": lambda y: y.roll(3, 0),
    "var": lambda y: y.var(0),
    "sum": lambda y: y.sum(0),
    "cumsum": lambda y: y.cumsum(0),
    "sort": lambda y: y.sort(0)[0],
    "stack": lambda y: torch.stack((y, y)),
    "mm": lambda y: y.T @ y,
    "outer": lambda y: torch.outer(y[:, 0], y[:, 0]),
    "reshape": lambda y: y.reshape(2, -1),
    "diag": lambda y: torch.diag(y[:, 0]),
    "amax": lambda y: y.amax(0),
}
MAKERS = {
    "expression": (lambda x, n: x.new_full((abs(n) % 3, 2), float(n)) * x[:2], (2, -3, 4, -6, 5)),
    "slice": (lambda x, n: torch.stack((x[:n], x[:n]), 1), (2, 3, 0, 4, 1, 0)),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("op", OPS)
def test_ops_on_them_are_compiled_and_equal_eagers(op, make):
    def program(x, n):
        return OPS[op](MAKERS[make][0](x, n))

    compiled = turret.compile(program, options={"on_error": "raise", "cache": False})
    for n in MAKERS[make][1]:
        x = torch.tensor([0.5, 1.0, 2.0, 3.0])
        how, found = outcome(compiled, (x, n), {})
        expected_how, expected = outcome(program, (x, n), {})
        assert how == expected_how, (n, found)
        if how == "raised":
            assert type(found) is type(expected)
        else:
            assert found.shape == expected.shape and found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_result_has_strides_of_a_size_that_a_guard_made_a_number():
    """``view`` is guarded on ``n == 4``, after the strides of the result were written down with ``n``."""

    def program(x, n):
        y = torch.stack((x[:n], x[:n]), 1)
        return torch.outer(y[:, 0], y[:, 0])

    compiled = turret.compile(program, options={"on_error": "raise", "cache": False})
    x = torch.tensor([0.5, 1.0, 2.0, 3.0])
    for n in (2, 3, 0, 4, 1):
        torch.testing.assert_close(compiled(x, n), program(x, n))


def test_the_variance_of_nothing_is_compiled():
    compiled = turret.compile(lambda x: x.var(0), options={"on_error": "raise", "cache": False})
    torch.testing.assert_close(compiled(torch.ones(0, 2)), torch.full((2,), torch.nan), equal_nan=True)


CHOICES = {
    "max": lambda y: y.max(),
    "min": lambda y: y.min(),
    "mode": lambda y: y.mode(0),
    "median": lambda y: y.median(0),
    "max of a dimension": lambda y: y.max(0),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_chosen_from_nothing_raises_eagers_error(choice):
    def program(x, n):
        return x + 1, CHOICES[choice](x[n : n + 1])

    compiled = turret.compile(program, fullgraph=True)
    for size, n in ((11, -8), (22, -7), (5, 2)):
        x = torch.arange(float(size))
        torch.testing.assert_close(tuple(compiled(x, n)), tuple(program(x, n)))
    with pytest.warns(turret.TurretWarning, match="eager refuses this call"):
        kind, error = outcome(compiled, (torch.zeros(1), -9), {})
    assert (kind, str(error)) == ("raised", str(outcome(program, (torch.zeros(1), -9), {})[1]))


@pytest.mark.parametrize("bounds", [False, True])
def test_a_row_that_may_not_be_there_is_read_by_nothing_ahead_of_its_loop(bounds):
    """Its index mentions no loop, as that of a dimension of extent 0 or 1 does, and the tensor may have no memory."""

    def program(x, n):
        row = x[n // 2 : -x.shape[-1]]
        row.diagonal(0, -2, -1).fill_(1)
        return 2.5 / (row.abs() + 1), row.expand(-1, 3) * 2

    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise", "check_bounds": bounds})
    for n in (-2, -4, 0, 2):
        x, given = torch.full((1, 1), 3.0), torch.full((1, 1), 3.0)
        torch.testing.assert_close(compiled(given, n), program(x, n))
        assert torch.equal(x, given)


ON_NAMED = {
    "index_fill": lambda v: v.index_fill(1, torch.tensor([0]), 1),
    "index_put": lambda v: v.index_put((torch.tensor([0]),), torch.tensor(3.0)),
    "scatter": lambda v: v.scatter(0, torch.zeros(1, 1, dtype=torch.long), 3.0),
    "index_add": lambda v: v.index_add(1, torch.tensor([0]), v),
    "slice_scatter": lambda v: v.slice_scatter(v[1:] * 2, 0, 1),
    "diagonal_scatter": lambda v: v.diagonal_scatter(v.diagonal() * 2),
    "cumsum": lambda v: v.cumsum(0),
    "cat": lambda v: torch.cat([v, v * 2], 1),
    "put": lambda v: v.put(torch.tensor([0]), torch.tensor([2.0])),
}


@pytest.mark.parametrize("op", ON_NAMED)
def test_a_size_may_go_by_two_names(op):
    """``tril`` counts its rows, ``max(0, n)`` of them, where the tensor has ``n``, which is never negative."""

    def program(x, n):
        rows = torch.tril(x[-(n // 2) :], -1)
        return ON_NAMED[op](rows)

    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise"})
    for n in (-1, -4, 0):
        x = torch.arange(10.0).view(10, 1) + 1
        torch.testing.assert_close(compiled(x, n), program(x, n))
