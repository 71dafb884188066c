"""Which symbols a statement needs to know, wherever in it they are."""

from __future__ import annotations

import pytest
import sympy
import torch

from turret.ir import (
    Binding,
    CopyInto,
    Definition,
    Extern,
    Index,
    Number,
    Ref,
    Scatter,
    StridedView,
    TensorDecl,
    Var,
    bound_symbols,
    call,
    cast,
    check_index,
    constant,
    index_value,
    load,
    mentioned_symbols,
    reduce,
    size_value,
)
from turret.ir.analysis.symbols import has_float

F32, CPU = torch.float32, torch.device("cpu")
N, M, K = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("u0", "u1", "u2"))
S = sympy.Symbol("s0", integer=True, positive=True)
FLOAT = sympy.Symbol("zuf0", real=True)


def decl(name: str, *shape, stride=None) -> TensorDecl:
    return TensorDecl(name, shape, tuple(stride or (1,) * len(shape)), F32, CPU)


ROW = Var("i0", 4)
EXPRESSIONS = {
    "a number": (size_value(N + M, F32), {"u0", "u1"}),
    "a float": (size_value(FLOAT, F32), {"zuf0"}),
    "an offset": (load("x", [ROW.index + N], F32), {"u0"}),
    "a coefficient": (load("x", [ROW.index * N], F32), {"u0"}),
    "a divisor": (load("x", [(ROW.index + 1) // N], F32), {"u0"}),
    "a remainder": (load("x", [(ROW.index + M) % N], F32), {"u0", "u1"}),
    "an index as a number": (index_value(ROW.index + N, F32), {"u0"}),
    "an extent that is checked": (
        load("x", [Index.of_value(check_index(cast(load("i", [ROW], F32), torch.int64), N))], F32),
        {"u0"},
    ),
    "a reduction": (reduce("sum", (Var("r0", M),), load("x", [Var("r0", M)], F32)), {"u1"}),
    "none": (call("add", load("x", [ROW], F32), constant(1, F32)), set()),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_definition_needs_the_symbols_of_its_expression(name):
    expr, symbols = EXPRESSIONS[name]
    assert mentioned_symbols(Definition(decl("y", 4), (ROW,), expr)) == symbols


def test_an_expression_may_stand_in_for_a_definitions_own():
    definition = Definition(decl("y", K), (Var("i0", K),), constant(0, F32))
    assert mentioned_symbols(definition) == {"u2"}
    assert mentioned_symbols(definition, size_value(N, F32)) == {"u0", "u2"}


def test_shapes_strides_and_offsets_are_needed():
    assert mentioned_symbols(Definition(decl("y", S, 3, stride=(N, 1)), (), constant(0, F32))) == {"s0", "u0"}
    assert mentioned_symbols(StridedView(decl("v", N), "x", 2 * M)) == {"u0", "u1"}
    assert mentioned_symbols(CopyInto("x", "y")) == frozenset()


def test_a_scatter_needs_what_its_loops_and_places_mention():
    loops = (Var("i0", M),)
    scatter = Scatter(
        decl("y", 4), "z", loops, (loops[0].index + N,), constant(0, F32), "add", cast(size_value(K), torch.bool)
    )
    assert mentioned_symbols(scatter) == {"u0", "u1", "u2"}


def test_a_call_needs_its_arguments_and_not_what_it_binds_itself():
    extern = Extern(
        torch.ops.aten.masked_select.default,
        (Ref("x"), [M, (1, K)]),
        {"size": S},
        (decl("y", N),),
        symbol_bindings=(Binding("u0", 0, 0),),
    )
    assert mentioned_symbols(extern) == {"u1", "u2", "s0"}
    assert bound_symbols(extern) == ("u0",)


def test_a_computed_number_needs_what_it_is_computed_from():
    number = Number("n", FLOAT * 2 + N, is_float=True)
    assert mentioned_symbols(number) == {"zuf0", "u0"} and bound_symbols(number) == ("n",)
    assert bound_symbols(CopyInto("x", "y")) == ()


def test_floats_are_told_from_integers():
    assert has_float(FLOAT + N) and not has_float(N * 2) and not has_float(7)
