"""Floats that a tensor's data give are compared and chosen among as Python has it, those that are no numbers, too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.errors import CaptureError

NUMBERS = (3.7, 0.5, -2.25, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e300)
OPERATORS = (operator.add, operator.sub, operator.mul, max, min)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def drawn(depth: int) -> st.SearchStrategy[Callable[[float, float], float | int]]:
    """Functions of two floats, of operators that raise for none."""
    leaves = st.one_of(
        st.just(lambda a, b: a),
        st.just(lambda a, b: b),
        st.sampled_from((1, 0, -2, 1.5, -0.0)).map(lambda c: lambda a, b: c),
    )
    if depth == 0:
        return leaves
    parts = drawn(depth - 1)
    of_two = st.builds(lambda f, x, y: lambda a, b: f(x(a, b), y(a, b)), st.sampled_from(OPERATORS), parts, parts)
    of_one = st.builds(lambda f, x: lambda a, b: f(x(a, b)), st.sampled_from((operator.neg, abs)), parts)
    return st.one_of(leaves, of_two, of_one)


def shown(value):
    """A value to the bit, and of which type it is."""
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(map(shown, value.tolist()))
    return type(value), value.hex() if isinstance(value, float) else value


@settings(max_examples=25, deadline=None)
@given(drawn(2), drawn(2), st.sampled_from(COMPARISONS), st.booleans())
def test_functions_of_them_are_pythons(first, second, comparison, negated):
    def program(x):
        a, b = x[0].item(), x[1].item()
        left, right = first(a, b), second(a, b)
        found = comparison(left, right)
        return left, right, not found if negated else found, x.new_ones(2) * left

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False})
    for a in NUMBERS:
        for b in (NUMBERS[0], math.nan, -0.0):
            x = torch.tensor([a, b], dtype=torch.float64)
            try:
                found = compiled(x)
            except CaptureError:  # it matters of which type a number is that data choose
                return
            assert shown(found) == shown(program(x)), (a, b)


WHOLE = {
    "larger": lambda s, x: (max(s, 1.0), max(1.0, s)),
    "smaller": lambda s, x: (min(s, 1.0), min(1.0, s)),
    "zeros": lambda s, x: (max(s, -0.0), max(-0.0, s), min(s, 0.0), min(0.0, s)),
    "of two": lambda s, x: (max(s, x[1].item() * 2), min(max(s, 0), x[1].item())),
    "an int or a float": lambda s, x: (max(s, 1), max(1, s), min(s, 3), max(1, min(s, 3)), 2.0 * max(1, s)),
    "beside a tensor": lambda s, x: (x / max(1, s), x * min(max(s, 0), 1), (max(s, 1) + 2) - x, max(s, 1) > x),
    "of a size": lambda s, x: (max(s, x.shape[0] / 2), min(x.shape[0] * 0.5, s)),
    "itself": lambda s, x: (s == s, s != s, s < s, s >= s, abs(s) >= 0),
    "negated": lambda s, x: (not (s > 1), not (s <= 1), not (s == 2), not (s != 2)),
    "with a size": lambda s, x: (s > x.shape[0], x.shape[0] >= s),
}


@pytest.mark.parametrize("name", WHOLE)
def test_they_are_compared_and_chosen_among_in_one_graph(name):
    def program(x):
        return WHOLE[name](x[0].item(), x)

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for a in NUMBERS:
        x = torch.tensor([a, 1.25], dtype=torch.float64)
        assert shown(compiled(x)) == shown(program(x)), a


def test_beside_a_tensor_of_integers_it_matters_which_of_a_float_and_an_int_was_chosen():
    def program(x):
        return torch.ones(2, dtype=torch.int32) * max(1, x.item())

    compiled = turret.compile(program)
    for number in (0.5, 2.5):
        assert shown(compiled(torch.tensor(number))) == shown(program(torch.tensor(number)))


def outcome(function, *args):
    """What a call gives, or which error it raises."""
    try:
        return shown(function(*args))
    except Exception as error:
        assert not isinstance(error, turret.TurretError), error
        return type(error)


UNREAD = {
    "an int of one": lambda x: int(x[0].item()),
    "a floor of one": lambda x: math.floor(x[0].item()),
    "a quotient": lambda x: 1 / x[0].item(),
    "a quotient of two": lambda x: x[1].item() / x[0].item(),
    "a negative power": lambda x: x[0].item() ** -1,
    "a quotient of ints": lambda x: 3 // int(x[0] > 1),
    "a number that a dtype does not hold": lambda x: torch.full((2,), x[0].item() * 1, dtype=torch.float16),
    "a value to fill in": lambda x: x.float().masked_fill(x > 0, x[0].item() ** 3),
}


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("name", UNREAD)
def test_what_python_raises_for_them_is_raised_whether_or_not_the_result_is_read(name, is_read):
    def program(x):
        made = UNREAD[name](x)
        return (x * 2, made) if is_read else (x * 2,)

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for a in (2.5, 0.0, -0.0, -3.0, math.nan, math.inf, 1e5):
        x = torch.tensor([a, 1.25], dtype=torch.float64)
        assert outcome(compiled, x) == outcome(program, x), a


def test_an_int_that_64_bits_do_not_hold_is_pythons():
    def program(x):
        return int(x.item()), x * 2

    compiled = turret.compile(program, fullgraph=True)
    assert shown(compiled(torch.tensor([2.5]))) == shown(program(torch.tensor([2.5])))
    with pytest.warns(turret.TurretWarning, match="no 64-bit integer holds"):
        assert shown(compiled(torch.tensor([1e30]))) == shown(program(torch.tensor([1e30])))


POWERS = {
    "squares": lambda s, n: (s**2, s**3, s**0, s**1.0),
    "negative": lambda s, n: s**-2,
    "of an int of data": lambda s, n: (s**n, float(n) ** 2, n**-1),
}


@pytest.mark.parametrize("name", POWERS)
def test_their_powers_are_pythons_those_of_negative_numbers_too(name):
    def program(x, n):
        return POWERS[name](x.item(), n.item())

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for a in NUMBERS:
        for n in (2, -1, 3, 0):
            x = torch.tensor(a, dtype=torch.float64)
            assert outcome(compiled, x, torch.tensor(n)) == outcome(program, x, torch.tensor(n)), (a, n)


def test_the_sign_of_a_quotient_of_zero_is_kept():
    def program(x):
        return -0.0 / x.item(), 0 / x.item()

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for a in (2.0, -2.0, math.inf, math.nan):
        assert shown(compiled(torch.tensor(a))) == shown(program(torch.tensor(a)))


def test_bools_of_data_become_numbers():
    def program(x):
        holds = bool(x > 1)
        return int(holds), float(holds), x * int(holds), torch.zeros(int(holds)), math.trunc(float(holds))

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for a in (2.0, 0.5, math.nan):
        assert shown_all(compiled(torch.tensor(a))) == shown_all(program(torch.tensor(a)))


def shown_all(values):
    return [repr(v) if isinstance(v, torch.Tensor) else shown(v) for v in values]


def test_an_assertion_of_a_float_that_python_computes_is_one_of_pythons():
    def program(x):
        torch._check((x.shape[0] + 0.5) ** 2 < 9)
        return x * 2

    compiled = turret.compile(program, fullgraph=True, dynamic=True)
    for size in (2, 5):
        assert outcome(compiled, torch.ones(size)) == outcome(program, torch.ones(size))


def test_a_bool_of_data_is_subtracted_from_no_tensor():
    def program(x):
        return x - bool(x[0] > 0)

    with pytest.warns(turret.TurretWarning, match="is a bool"), pytest.raises(RuntimeError, match="with a bool tensor"):
        turret.compile(program, fullgraph=True)(torch.ones(2))


def test_a_part_of_an_input_may_be_as_long_as_a_float_of_data_says():
    def program(x, length):
        x.add_(1)
        return x[: int(length.item())], x[math.floor(length.item()) :], x[: math.ceil(length.item())], length.item()

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    for length in (2.5, 0.0, -1.5, 9.0):
        given, length = torch.arange(5.0), torch.tensor([length])
        assert shown(compiled(given.clone(), length)) == shown(program(given.clone(), length))


@pytest.mark.filterwarnings("ignore:Turret")
@pytest.mark.parametrize(
    "unread",
    [
        lambda f: f**2,
        lambda f: f**-2,
        lambda f: f**100,
        lambda f: f**0.5,
        lambda f: 2.0**f,
        lambda f: 0.5**f,
        lambda f: f ** (f / 2),
    ],
)
def test_a_power_that_no_float_holds_raises_although_nobody_reads_it(unread):
    def program(x):
        unread(x[0].item())
        return x + 1

    compiled = turret.compile(program, fullgraph=True)
    for a in (2.0, -3.0, 0.0, 1e154, 1.5e154, -1e200, 1e30, math.inf, math.nan):
        x = torch.tensor([a], dtype=torch.float64)
        assert outcome(compiled, x) == outcome(program, x)


@pytest.mark.filterwarnings("ignore:Turret")
@pytest.mark.parametrize("end", [3.0, 0.0, -1.0, 1e30, math.inf, math.nan])
def test_a_range_of_more_elements_than_can_be_counted_raises_although_nobody_reads_it(end):
    def program(x):
        torch.arange(x[0].item())
        return x + 1

    x = torch.tensor([end], dtype=torch.float64)
    assert outcome(turret.compile(program, fullgraph=True), x) == outcome(program, x)
