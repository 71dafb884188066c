"""Index arithmetic simplifies without changing a value."""

from __future__ import annotations

import pickle

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy import functions

from tests.plugins.loop_lab import index_at, points
from turret.ir import Index, Var, flatten, size, unflatten
from turret.ir.index import (
    Div,
    Mod,
    computed_by_host,
    divide_exactly,
    provably_less,
    provably_nonnegative,
    size_of_inputs,
)

VARIABLES = (Var("i", 4), Var("j", 6), Var("k", 3), Var("one", 1))
SMALL = st.integers(1, 24)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int]]:
    """A recipe of operations, applied to an index and to plain ints alike."""
    operation = st.sampled_from(("add", "mul", "div", "mod", "variable", "constant", "subtract"))
    return [(draw(operation), draw(SMALL)) for _ in range(draw(st.integers(1, 9)))]


def apply(recipe: list[tuple[str, int]], value, variables):
    kept = value
    for operation, number in recipe:
        variable = variables[number % len(variables)]
        match operation:
            case "add":
                value = value + kept * number
            case "mul":
                value = value * number
            case "div":
                value = kept = value // number
            case "mod":
                value = kept = value % number
            case "variable":
                value = value + variable * number
            case "constant":
                value = value + number
            case "subtract":
                value = value - variable * number
    return value


@settings(max_examples=300, deadline=None)
@given(steps())
def test_every_operation_agrees_with_plain_integers(recipe: list[tuple[str, int]]) -> None:
    index = apply(recipe, VARIABLES[0].index, [v.index for v in VARIABLES])
    low, high = index.bounds()
    for env in points(VARIABLES):
        expected = apply(recipe, env[VARIABLES[0]], [env[v] for v in VARIABLES])
        assert index_at(index, env, {}) == expected
        assert low <= expected <= high


@settings(max_examples=60, deadline=None)
@given(steps())
def test_the_sympy_form_has_the_same_value(recipe: list[tuple[str, int]]) -> None:
    index = apply(recipe, VARIABLES[0].index, [v.index for v in VARIABLES])
    expression = index.to_sympy()
    for env in list(points(VARIABLES))[::11]:
        assert expression.subs({v.to_sympy(): n for v, n in env.items()}) == index_at(index, env, {})


@settings(max_examples=100, deadline=None)
@given(steps(), steps())
def test_substitution_is_evaluation_at_the_substituted_values(outer: list, inner: list) -> None:
    i = VARIABLES[0]
    index = apply(outer, i.index, [v.index for v in VARIABLES])
    replacement = apply(inner, VARIABLES[1].index, [v.index for v in VARIABLES]) % i.extent
    moved = index.substitute({i: replacement})
    for env in points(VARIABLES):
        assert index_at(moved, env, {}) == index_at(index, {**env, i: index_at(replacement, env, {})}, {})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_flatten_undoes_unflatten(shape: list[int]) -> None:
    linear = Var("n", int(sympy.prod(shape))).index
    assert flatten(unflatten(linear, tuple(shape)), shape) is linear
    coords = [Var(f"c{k}", extent).index for k, extent in enumerate(shape)]
    assert list(unflatten(flatten(coords, shape), tuple(shape))) == coords


def test_equal_indices_are_one_object() -> None:
    i, j = VARIABLES[0].index, VARIABLES[1].index
    assert i * 6 + j is j + 6 * i
    assert (i * 12 + j * 2) // 2 is i * 6 + j
    assert pickle.loads(pickle.dumps(i * 6 + j)) is i * 6 + j
    assert i - i == Index.constant(0)
    assert VARIABLES[3].index is Index.constant(0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda i, j: (6 * i + j) // 6, "i"),
        (lambda i, j: (6 * i + j) % 6, "j"),
        (lambda i, j: ((6 * i + j) // 3) // 2, "i"),
        (lambda i, j: 4 * ((6 * i + j) // 4) + (6 * i + j) % 4, "6*i + j"),
        (lambda i, j: (12 * i) % 8, "4*((3*i)%2)"),
        (lambda i, j: (j % 6) % 3, "((j)%3)"),
    ],
)
def test_known_forms_fold(make, text: str) -> None:
    folded = make(VARIABLES[0].index, VARIABLES[1].index)
    assert str(folded) == text


def test_symbolic_extents_fold_as_numbers_do() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    i, j = Var("i", 4).index, Var("j", s).index
    assert (i * s + j) // s is i
    assert (i * s + j) % s is j
    assert provably_nonnegative(size(s - 1))
    assert not provably_nonnegative(size(s - 2))
    assert provably_less(size(s - 1), s)
    assert divide_exactly(size(6 * s), size(2 * s)) == 3
    assert divide_exactly(size(s + 1), 2) is None


def test_division_that_does_not_fold_stays_a_term() -> None:
    j = VARIABLES[1].index
    ((quotient, _),) = (j // 4).terms
    ((rest, _),) = (j % 4).terms
    assert isinstance(quotient, Div)
    assert isinstance(rest, Mod)
    assert (j // 4).bounds() == (0, 1)
    assert (j % 4).bounds() == (0, 3)


def test_symbols_that_depend_on_data_may_be_zero_or_negative():
    s, n = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("u0", integer=True, nonnegative=True)
    any_ = sympy.Symbol("u1", integer=True)
    assert provably_nonnegative(s - 1) and not provably_nonnegative(n - 1) and provably_nonnegative(2 * n)
    assert not provably_nonnegative(any_) and not provably_nonnegative(any_ + n)
    assert provably_less(n, n + 1) and not provably_less(1, n + 1) and provably_less(0, s)


def test_an_index_into_a_size_that_may_be_zero_keeps_what_zero_would_change():
    n = sympy.Symbol("u0", integer=True, nonnegative=True)
    i, j = Var("i", 5), Var("j", n)
    assert (i.index % (n + 4)).terms != i.index.terms  # the index is 4 at most, but what divides may be 4
    assert (i.index * n + j) // n is i.index and (i.index * n + j) % n is j.index


def test_a_size_of_the_trace_knows_its_sign():
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    number, extent = env.create_unbacked_symint(), env.create_unbacked_symint()
    torch._check(extent >= 0)
    assert size(number).is_nonnegative is None and size(extent).is_nonnegative
    assert size(number).name != size(extent).name and size(extent) == size(extent * 2) / 2


@pytest.mark.parametrize(("assumed", "sign"), [(None, None), (0, "nonnegative"), (1, "positive"), (-3, None)])
def test_an_int_argument_may_be_negative_unless_a_guard_says_otherwise(assumed, sign):
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    from turret.plugins.capture.record.graph import SymbolName

    env = ShapeEnv()
    source = SymbolName("n")
    symbol = env.create_symbol(5, source, dynamic_dim=DimDynamic.DYNAMIC, positive=None)
    number = env.create_symintnode(symbol, hint=5, source=source)
    assert assumed is None or bool(number >= assumed)
    assert provably_nonnegative(size(number)) == (sign is not None)
    assert provably_nonnegative(size(number - 1)) == (sign == "positive")
    assert not provably_nonnegative(size(-number))


def test_integers_that_come_of_floats_are_symbols_for_kernels():
    n = sympy.Symbol("n", integer=True, positive=True)
    scaled = functions.TruncToInt(1.5 * functions.ToFloat(n))
    ((symbol, part),) = computed_by_host(2 * scaled + n).items()
    assert part == scaled and symbol.is_integer and symbol.is_nonnegative
    assert size(2 * scaled + n) == 2 * symbol + n
    assert size_of_inputs(2 * scaled + n) == 2 * scaled + n
    assert not computed_by_host(functions.FloorDiv(n + 1, 2))


def test_what_is_divided_comes_apart_into_units_and_a_rest() -> None:
    place, channel = Var("place", 9), Var("channel", 32)
    both = place.index * 32 + channel.index
    assert both % 96 is place.index % 3 * 32 + channel.index
    assert both // 96 is place.index // 3
    assert (both + 7) // 96 is not place.index // 3  # 7 more may reach the next place
