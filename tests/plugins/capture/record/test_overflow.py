"""What is guarded so that integers which kernels compute stay within 64 bits."""

from __future__ import annotations

import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Max, Min, PythonMod

from turret.plugins.capture.record.overflow import LEAST, MOST, MOST_SYMBOL, overflowing

N, M = sympy.symbols("n m", integer=True)
S, T, OTHER = sympy.symbols("s t other", integer=True, positive=True)
OWNERS = {S: "x", T: "x", OTHER: "y"}
VALUES = st.one_of(st.integers(-MOST_SYMBOL, MOST_SYMBOL), st.integers(-100, 100), st.just(MOST_SYMBOL))


def parts(expression: sympy.Expr) -> list[sympy.Expr]:
    return list(overflowing(sympy.expand(expression), OWNERS))


def test_common_expressions_need_no_guard():
    for expression in (
        N,
        N + 1,
        S - N,
        -N,
        2 * S,
        N + M,
        FloorDiv(N, 2),
        PythonMod(N, 7),
        S * T,
        Max(N, S),
        -S * T + 3,
    ):
        assert not parts(expression), expression


def test_what_may_pass_64_bits_is_named():
    assert parts(N * M) == [N * M] and parts(3 * N) == [3 * N] and parts(S * OTHER) == [S * OTHER]
    assert parts(FloorDiv(N * M, 4)) == [FloorDiv(N * M, 4), N * M]
    assert parts(PythonMod(N * N, 7)) == [N**2], "the remainder fits, what is divided may not"


@st.composite
def expressions(draw: st.DrawFn) -> sympy.Expr:
    """Arithmetic over two ints."""
    found = [N, M, sympy.Integer(draw(st.integers(-9, 9)))]
    for _ in range(draw(st.integers(1, 4))):
        a, b = draw(st.sampled_from(found)), draw(st.sampled_from(found))
        divisor = draw(st.integers(1, 9))
        found.append(
            draw(
                st.sampled_from(
                    [a + b, a * b, a - b, FloorDiv(a, divisor), PythonMod(a, divisor), Max(a, b), Min(a, b)]
                )
            )
        )
    return sympy.sympify(found[-1])


def value(expression: sympy.Expr, n: int, m: int) -> int:
    return int(expression.xreplace({N: sympy.Integer(n), M: sympy.Integer(m)}))


@given(expressions(), VALUES, VALUES)
def test_where_the_named_parts_fit_the_whole_fits(expression: sympy.Expr, n: int, m: int):
    expression = sympy.expand(expression)
    if all(LEAST <= value(part, n, m) <= MOST for part in overflowing(expression, {})):
        assert LEAST <= value(expression, n, m) <= MOST
        inner = [a for part in sympy.preorder_traversal(expression) if isinstance(part, (FloorDiv, PythonMod, Max, Min))
                 for a in part.args]  # fmt: skip
        assert all(LEAST <= value(a, n, m) <= MOST for a in inner)
