"""Numbers that change, beside constants of any class of numbers: what Python says of both."""

from __future__ import annotations

import enum
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.function_capture import Watch, captured

X = torch.ones(1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Whole(int):
    pass


THREE = (
    Level(3), Bits.A | Bits.B, Whole(3), Fraction(3), Decimal(3), 3, 3.0, 3 + 0j, numpy.int64(3), numpy.float32(3), True,
    numpy.bool_(True), "3", None, (3,), 10**20, float("nan"),
)  # fmt: skip
FORMS = (
    "c == n", "n == c", "c != n", "n != c", "n < c", "c >= n", "c in (n, 1)", "n in [c]", "(c, n).index(n)",
    "[n, c].count(c)", "(c, 1) == (n, 1)", "{'a': c} == {'a': n}", "max(c, n) == n", "sorted([n, c]) == [n, c]",
    "n.__eq__(c) is True", "n.__lt__(c) is True", "n.__add__(c) == n + c", "c + n == 6", "n - c == 0", "c * n > 8",
    "n // c == 1", "c % n == 0", "c & n == 3", "n | c == 3", "divmod(c, n)[1] == 0", "bool(c) and n", "not (c == n)",
)  # fmt: skip


def _outcome(program, *args) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(program(*args))
        except Exception as error:
            return f"{type(error).__name__}: {error}"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(range(len(THREE))), st.sampled_from(FORMS), st.permutations((3, 7, -2, 4)), st.booleans())
def test_a_number_that_changes_is_what_python_takes_it_for(which, form, values, given_):
    constant = THREE[which]
    scope = {"constant": constant}
    parameters = "x, n, c=constant" if given_ else "x, n"
    first = "" if given_ else " c = constant\n"
    exec(f"def program({parameters}):\n{first} y = x + n\n return y, 'yes' if {form} else 'no'", scope)
    ours = captured(scope["program"], Watch())
    for n in (2, 5, *values):
        assert _outcome(ours, X, n) == _outcome(scope["program"], X, n)


@pytest.mark.parametrize("constant", [Level.HIGH, Bits.A | Bits.B, True, 3.0])
def test_a_member_of_an_enum_costs_no_capture_for_each_number(constant):
    def program(x, n):
        return x + n, n == constant, n * constant

    watch = Watch()
    ours = captured(program, watch)
    for n in (2, 5, 7, 9, 11):
        assert repr(ours(X, n)) == repr(program(X, n))
    assert len(watch.events["graph"]) <= 2 and "graph_break" not in watch.events
