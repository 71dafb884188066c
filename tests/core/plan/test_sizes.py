"""Sizes of a plan: written as Python, they are computed as sympy computes them."""

from __future__ import annotations

import math

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.plan import number_text, size_text
from turret.plan.sizes import compile_size
from turret.torch_compat.sizes import of_sizes

A, B = sympy.symbols("a b", integer=True)
COMPARISONS = (sympy.Lt, sympy.Le, sympy.Eq, sympy.Ne)


def combined(sizes: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    """Sums, products, bounds and choices of sizes, as decompositions make them of indices that may be negative."""
    condition = st.builds(lambda compare, left, right: compare(left, right), st.sampled_from(COMPARISONS), sizes, sizes)
    return st.one_of(
        st.builds(lambda x, y: x + y, sizes, sizes),
        st.builds(lambda x: 3 * x - 1, sizes),
        st.builds(lambda x, y: of_sizes.Max(x, of_sizes.Min(y, 6)), sizes, sizes),
        st.builds(lambda x: of_sizes.FloorDiv(x, 2), sizes),
        st.builds(lambda x, y, c: sympy.Piecewise((x, c), (y, True)), sizes, sizes, condition),
    )


SIZES = st.recursive(st.sampled_from([A, B, sympy.Integer(0), sympy.Integer(-2), A + 7]), combined, max_leaves=6)


@given(SIZES, st.lists(st.tuples(st.integers(-8, 8), st.integers(-8, 8)), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_the_text_of_a_size_computes_what_the_size_is(size, values):
    text = size_text(size)
    for a, b in values:
        assert compile_size(text)({"a": a, "b": b}) == size.xreplace({A: sympy.Integer(a), B: sympy.Integer(b)})


def test_a_comparison_of_a_choice_is_written_as_a_choice():
    end = sympy.Piecewise((A + 7, A < 0), (A, True))
    size = sympy.Piecewise((1, end < -1), (2, True))
    assert size.atoms(sympy.ITE)
    assert [compile_size(size_text(size))({"a": a}) for a in (-9, -8, -1, 0)] == [1, 2, 2, 2]


def test_a_number_is_divided_by_zero_as_in_cpp():
    quotient = compile_size(number_text(of_sizes.FloatTrueDiv(of_sizes.ToFloat(A), of_sizes.ToFloat(B) - 3.0)))
    assert [quotient({"a": a, "b": b}) for a, b in ((2, 3), (-2, 3), (2, 5), (0, 5))] == [math.inf, -math.inf, 1.0, 0.0]
    assert math.isnan(quotient({"a": 0, "b": 3}))
