"""Sizes as text: what Triton and the host compute is what the expression means, whatever the signs."""

from __future__ import annotations

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Min, ModularIndexing, PythonMod

from turret.plugins.codegen.triton.tiles.sizes import size_text

N, M = sympy.symbols("n m", integer=True)
S = sympy.Symbol("s", integer=True, positive=True)


class TritonInt(int):
    """An integer that divides as Triton's do: towards zero."""

    def __floordiv__(self, other: int) -> TritonInt:
        return TritonInt(math.trunc(int.__truediv__(int(self), int(other))))

    def __mod__(self, other: int) -> TritonInt:
        return TritonInt(int(self) - int(self // other) * int(other))

    def __add__(self, other: int) -> TritonInt:
        return TritonInt(int(self) + int(other))

    def __sub__(self, other: int) -> TritonInt:
        return TritonInt(int(self) - int(other))

    def __mul__(self, other: int) -> TritonInt:
        return TritonInt(int(self) * int(other))

    def __neg__(self) -> TritonInt:
        return TritonInt(-int(self))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> TritonInt:
        return TritonInt(int(other) - int(self))


def rounded_down(a: int, b: int) -> TritonInt:
    return TritonInt(int(a) // int(b))


def remainder(a: int, b: int) -> TritonInt:
    return TritonInt(int(a) % int(b))


FORMS = [
    FloorDiv(N, 2), FloorDiv(N, -3), FloorDiv(S, 4), FloorDiv(S - 9, 4), PythonMod(N, 7), PythonMod(S, 7),
    PythonMod(-N, 5) + FloorDiv(N + M, 2), PythonMod(S, -3), CeilDiv(N, 4), ModularIndexing(S, 3, 5), Max(N, S, 3) - M,
    Min(N, 2) * FloorDiv(S, 3), sympy.floor((N + 3) / sympy.Integer(4)), sympy.Abs(N), sympy.Abs(N - M) * S,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
@given(n=st.integers(-50, 50), m=st.integers(-50, 50), s=st.integers(1, 50))
def test_a_size_is_what_python_computes(form: sympy.Expr, n: int, m: int, s: int):
    expected = int(form.xreplace({N: sympy.Integer(n), M: sympy.Integer(m), S: sympy.Integer(s)}))
    for kind in (int, TritonInt):
        names = {"n": kind(n), "m": kind(m), "s": kind(s), "floor_div": rounded_down, "floor_mod": remainder}
        assert int(eval(size_text(form, str), names)) == expected
