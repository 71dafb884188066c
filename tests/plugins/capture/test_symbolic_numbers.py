"""Numbers that are symbols: what is computed of them, its type, and how branches on it go are Python's."""

from __future__ import annotations

import linecache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

LEAVES = ("n", "n", "m", "f", "2", "3", "-1", "0", "0.5", "1.5", "-2.5", "True")
FORMS = (
    "({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} // {b})", "({a} % {b})", "({a} / {b})", "min({a}, {b})",
    "max({a}, {b})", "abs({a})", "int({a})", "float({a})", "round({a})", "math.floor({a})", "(-{a})", "divmod({a}, {b})[1]",
    "max({a}, {b}, m)", "min(3, n, {a}, {b}, 5)", "sorted([{a}, {b}, n])[1]",
)  # fmt: skip
CONDITIONS = (
    "{a} < {b}", "{a} == {b}", "{a} != {b}", "{a}", "0 < {a} <= {b}", "float({a}).is_integer()",
    "({a}, n) < ({b}, m)", "[{a}, {b}] == [n, m]", "({a}, 1) >= ({b}, {a})", "{a} in (n, {b}, 3)",
)  # fmt: skip


def expressions(depth: int) -> st.SearchStrategy[str]:
    if depth == 0:
        return st.sampled_from(LEAVES)
    inner = expressions(depth - 1)
    made = st.builds(lambda form, a, b: form.format(a=a, b=b), st.sampled_from(FORMS), inner, inner)
    return st.one_of(st.sampled_from(LEAVES), made)


CONDITION = st.builds(
    lambda form, a, b: form.format(a=a, b=b), st.sampled_from(CONDITIONS), expressions(2), expressions(1)
)
LINES = """
    try:
        out.append((1 if {condition} else 2, {value}))
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        out.append(type(error).__name__)
"""


def program_of(pairs):
    lines = "".join(LINES.format(condition=condition, value=value) for condition, value in pairs)
    source = f"import math\ndef program(x, n, m, f):\n    out = []{lines}    return x * 2, out\n"
    space: dict = {}
    exec(compile(source, "<numbers>", "exec"), space)
    linecache.cache["<numbers>"] = len(source), None, source.splitlines(keepends=True), "<numbers>"
    return space["program"]


def check(program, calls):
    observed = Observed(program)
    for numbers in calls:
        expected, found = program(torch.ones(2), *numbers)[1], observed(torch.ones(2), *numbers)[1]
        assert [len(v) for v in found] == [len(v) for v in expected]
        for one, other in zip(found, expected, strict=True):
            assert [type(v) for v in one] == [type(v) for v in other], (numbers, found, expected)
            exact = isinstance(other, str) or type(other[1]) is not float
            assert one == other if exact else one[0] == other[0] and one[1] == pytest.approx(other[1], nan_ok=True)


NUMBERS = st.tuples(st.integers(-5, 9), st.integers(0, 4), st.sampled_from((0.5, 1.25, -1.75, 2.0, -0.1)))


@given(
    st.lists(st.tuples(CONDITION, expressions(2)), min_size=6, max_size=6), st.lists(NUMBERS, min_size=4, max_size=4)
)
@settings(max_examples=15, deadline=None)
def test_expressions_of_symbols_are_pythons(pairs, calls):
    check(program_of(pairs), calls)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("(n / 4) % 1", "(n / 4).is_integer()"),
        ("f % 2.0 > 1.2", "f % 1.0 == 0"),
        ("n == True", "n + True"),
        ("max(1.5, n) == n", "max(1.5, n)"),
        ("n < 100", "min(n, m / 2)"),
        ("n < 100", "-1 // f"),
        ("n < 100", "0.0 * n"),
        ("n < 100", "(0 * n) + 0.0"),
    ],
)
def test_what_once_was_wrong(condition, value):
    check(program_of([(condition, value)]), [(3, 1, 0.5), (5, 2, -0.1), (1, 3, 1.75), (-4, 4, -1.5), (7, 0, 2.0)])


def containers(children):
    """Forms of values that hold others, by how they are made of them."""
    lists = st.lists(children, max_size=2)
    return st.one_of(
        lists.map(lambda forms: lambda n: [form(n) for form in forms]),
        lists.map(lambda forms: lambda n: tuple(form(n) for form in forms)),
        lists.map(lambda forms: lambda n: {number: form(n) for number, form in enumerate(forms)}),
    )


WRITTEN = (lambda n: n, lambda n: n * 2 + 1, lambda n: n / 2, lambda n: "text", lambda n: None, lambda n: n > 3)
WRITERS = (
    lambda value: str(value),
    lambda value: repr(value),
    lambda value: f"{value}|{value!r}",
    lambda value: "{}, {again}".format(value, again=value),
    lambda value: "%s and %r" % (value, value),
    lambda value: "{k}".format_map({"k": value}),
)


@given(st.recursive(st.sampled_from(WRITTEN), containers, max_leaves=4), st.sampled_from(WRITERS))
@settings(max_examples=30, deadline=None)
def test_sizes_within_containers_are_written_as_numbers(form, write):
    def program(x):
        return x + 1, write(form(x.shape[0]))

    observed = Observed(program, fullgraph=True, dynamic=True)
    for length in (2, 5, 4):
        x = torch.ones(length)
        assert_same(observed(x), program(x))


def test_an_error_about_sizes_is_the_programs_own():
    def program(x, wanted):
        if x.shape[-1] != wanted:
            raise ValueError(f"{wanted} expected, not {x.shape[-1]} of {tuple(x.shape)}")
        return x * 2

    observed = Observed(program, fullgraph=True)
    observed(torch.ones(2), 2)
    for length in (3, 4):
        with pytest.raises(ValueError, match=rf"2 expected, not {length} of \({length},\)"):
            observed(torch.ones(length), 2)


def test_sizes_that_functions_give_are_sizes_in_what_is_made_of_them():
    def program(x, y):
        given = torch.broadcast_shapes(x.shape, y.shape)
        made = given, given[:1], given[1:], given + (2,), given + given, given * 2, torch.Size(given)[:1]
        return x + y, made, given.numel()

    observed = Observed(program)
    for n in (3, 4, 5):
        x, y = torch.ones(n, 1), torch.ones(2)
        assert_same(observed(x, y), program(x, y))
    assert len(observed.graphs) == 2


def equal_shapes(x, y):
    assert x.shape[1:] == y.shape[1:]
    return x * 2, x.shape == y.shape, x.shape != y.shape, x.shape < y.shape


def pairs_in_order(x, y):
    order = sorted([(len(x), 1), (len(y), 0)])
    return x * order[0][0], order[-1][1], max((len(x), x), (len(y), y), key=lambda pair: pair[0])[0]


def in_order(x, y):
    lengths = sorted([len(y), 3, len(x)], reverse=True)
    return x * lengths[0], sorted((x, y), key=len)[0].sum()


def found_among(x, y):
    return x * 2, len(x) in (99, len(y)), [len(x), len(y)].index(len(y)), [len(y), 5].count(len(x))


def equal_dicts(x, y):
    return x * 2, {"n": len(x), "m": 2} == {"n": len(y), "m": 2}


@pytest.mark.parametrize("program", [equal_shapes, pairs_in_order, in_order, found_among, equal_dicts])
def test_containers_of_sizes_are_compared_and_not_captured_for_each_size(program):
    observed = Observed(program, fullgraph=True)
    for n in (4, 6, 7, 9, 12):
        x, y = torch.randn(n, 2), torch.randn(n + 1, 2)
        assert_same(observed(x, y), program(x, y))
    assert len(observed.graphs) == 2


def test_the_largest_of_many_sizes_is_one_symbol_whichever_it_is():
    def program(*parts):
        most = max(len(p) for p in parts)
        padded = [torch.nn.functional.pad(p, (0, most - len(p))) for p in parts]
        return torch.stack(padded), min(4, *map(len, parts), 50)

    observed = Observed(program, fullgraph=True)
    for sizes in ((3, 4, 5), (5, 6, 8), (9, 8, 7), (6, 12, 3), (7, 7, 7)):
        parts = [torch.randn(n) for n in sizes]
        assert_same(observed(*parts), program(*parts))
    assert len(observed.graphs) == 2


def rows_and_columns(x, n):
    return (
        x[n % 3, 0],
        x[..., n % 2],
        x[-(n % 3) - 1, None],
        x[len(x) - 2, 1:],
        x[(n % 3,)],
        x[1:, n % 2],
        x[n % 3, True],
    )


def written(x, n):
    y = x.clone()
    y[n % 3, :] = torch.ones(1, 2)
    y[:, n % 2] += 2
    y[1:, n % 2] = torch.arange(len(x) - 1.0)
    y[n % 3, n % 2] = torch.tensor(7.0)
    return y


def differentiated(x, n):
    x = x.clone().requires_grad_()
    (x[n % 3, 1] * x[:, n % 2].sum()).backward()
    return x.grad


def refused(x, n):
    try:
        x.clone()[n % 3, :] = torch.ones(3)
    except RuntimeError as error:
        return str(error), x + 1


@pytest.mark.parametrize("program", [rows_and_columns, written, differentiated, refused])
def test_ints_that_change_are_indices_beside_others(program):
    observed = Observed(program)
    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    for rows, n in ((5, 4), (6, 6), (7, 8), (9, 10), (12, 13)):
        x = torch.randn(rows, 2)
        expected = program(x, n)
        assert_same(observed(x, n), expected)
        assert_same(compiled(x, n), expected)
    assert len(observed.graphs) <= (2 if program is not rows_and_columns else 4) and not observed.breaks


@pytest.mark.parametrize("take", [lambda x, n: x[n], lambda x, n: x[:, n], lambda x, n: x.fill_(2)[n, 0]])
def test_an_index_that_changes_and_is_out_of_range_is_refused_in_eagers_words(take):
    def program(x, n):
        try:
            found = take(x, n)
        except IndexError as error:
            found = str(error)
        return found, x + 1

    observed = Observed(program)
    for n in (1, 2, 3, 4, 5):
        assert_same(observed(torch.ones(4, 4), n), program(torch.ones(4, 4), n))
    assert not observed.breaks and not observed.fallbacks
