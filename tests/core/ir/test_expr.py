"""Expressions: one object a value, exact folding, capture-free substitution, text."""

from __future__ import annotations

import cProfile
import gc
import math
import pickle
import pstats

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.loop_lab import at, number, value_at
from turret.errors import VerificationError
from turret.ir import Expr, Index, Var, call, cast, constant, load, loads, reduce, rewrite, scan, walk
from turret.ir.expr import bitcast, check_index, index_value, part, random, wrap_index

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
ROW, COLUMN, R = Var("i0", 4), Var("i1", 6), Var("r0", 3)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    """An int64 expression over ``ROW``, ``COLUMN`` and the tensor ``x`` of shape (4, 6)."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        leaf = draw(st.sampled_from(("constant", "index", "load")))
        if leaf == "constant":
            return number(draw(st.integers(-3, 3)))
        return index_value(draw(st.sampled_from((ROW, COLUMN)))) if leaf == "index" else at("x", ROW, COLUMN)
    below = expressions(depth=depth - 1)
    kind = draw(st.sampled_from(("add", "sub", "min", "max", "neg", "where", "sum")))
    if kind == "sum":
        return reduce("sum", (R,), call("add", draw(below), at("x", R, COLUMN)))
    if kind == "where":
        return call("where", call("lt", draw(below), draw(below)), draw(below), draw(below))
    return call(kind, *(draw(below) for _ in range(1 if kind == "neg" else 2)))


X = {"x": torch.arange(24).reshape(4, 6) - 11}


@settings(max_examples=150, deadline=None)
@given(expressions(), st.integers(0, 3), st.integers(0, 5))
def test_substituting_constants_is_evaluation_there(expr: Expr, i: int, j: int) -> None:
    moved = rewrite(expr, {ROW: Index.constant(i), COLUMN: Index.constant(j)})
    assert not moved.variables
    assert value_at(moved, {}, X, {}) == value_at(expr, {ROW: i, COLUMN: j}, X, {})


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_a_reduction_does_not_capture_a_variable_that_is_substituted(expr: Expr) -> None:
    moved = rewrite(expr, {ROW: R.index})
    for r in range(3):
        assert value_at(moved, {R: r, COLUMN: 2}, X, {}) == value_at(expr, {ROW: r, COLUMN: 2}, X, {})


@settings(max_examples=60, deadline=None)
@given(expressions())
def test_equal_expressions_are_one_object_through_pickling_and_rewriting(expr: Expr) -> None:
    assert pickle.loads(pickle.dumps(expr)) is expr
    assert rewrite(expr) is expr
    assert rewrite(rewrite(expr, {ROW: COLUMN.index % 4}), {}) is rewrite(expr, {ROW: COLUMN.index % 4})


@settings(max_examples=60, deadline=None)
@given(expressions())
def test_loads_are_those_of_a_walk_each_once_operands_first(expr: Expr) -> None:
    nodes = list(walk(expr))
    assert len(nodes) == len(set(nodes))
    assert all(nodes.index(child) < nodes.index(node) for node in nodes for child in node.children())
    assert list(loads(expr)) == [node for node in nodes if node.op == "load"]
    assert list(loads(expr, call("neg", at("y", ROW)))) == [*loads(expr), at("y", ROW)]


def test_loads_find_what_an_index_reads() -> None:
    inner = at("k", ROW)
    outer = load("x", (Index.of_value(check_index(inner, 4)), COLUMN), I64)
    assert list(loads(outer)) == [inner, outer]


def test_variables_that_stay_cost_no_walk() -> None:
    chain = load("x", (ROW.index, COLUMN.index), torch.float32)
    for step in range(300):
        chain = call("add", chain, constant(step + 0.5, torch.float32))
    profile = cProfile.Profile()
    profile.enable()
    same = rewrite(chain, {ROW: ROW.index, COLUMN: COLUMN.index})
    profile.disable()
    assert same is chain
    assert pstats.Stats(profile).total_calls < 50  # type: ignore[attr-defined]
    assert rewrite(chain, {ROW: COLUMN.index, COLUMN: COLUMN.index}) is rewrite(chain, {ROW: COLUMN.index})


def test_nodes_die_with_their_last_user() -> None:
    expr = call("exp", load("only_here", (ROW,), F32))
    loads(expr)
    before = len(Expr._interned)
    del expr
    gc.collect()
    assert len(Expr._interned) < before


def test_constants_that_are_equal_to_python_stay_apart() -> None:
    assert constant(0.0, F32) is not constant(-0.0, F32)
    assert constant(True, BOOL) is not constant(1, I64)
    assert constant(1, I64) is constant(1, I64)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_integers_that_would_wrap_are_not_folded(op: str) -> None:
    big = constant(2**62, I64)
    folded = call(op, call(op, big, big), constant(-(2**62) if op == "add" else 3, I64))
    assert folded.op == "const" or folded.op == op
    assert call("mul", big, constant(4, I64)).op == "mul"


def test_floats_are_folded_only_where_every_value_agrees() -> None:
    x = load("x", (ROW,), F32)
    assert call("mul", x, constant(1.0, F32)) is x
    assert call("div", x, constant(1.0, F32)) is x
    assert call("add", x, constant(0.0, F32)).op == "add"  # -0.0 + 0.0 is 0.0
    assert call("mul", x, constant(0.0, F32)).op == "mul"  # NaN, infinity, the sign of zero
    assert call("sub", x, x).op == "sub"
    assert call("neg", call("neg", x)) is x
    assert call("where", constant(True, BOOL), x, call("exp", x)) is x


def test_casts_of_literals_fold_only_where_the_value_survives() -> None:
    assert cast(constant(3, I64), F32) is constant(3.0, F32)
    assert cast(constant(0.1, F32), torch.bfloat16).op == "cast"
    assert cast(constant(300, I64), torch.uint8).op == "cast"
    assert cast(constant(math.inf, F32), I64).op == "cast"
    assert cast(load("x", (ROW,), F32), F32).op == "load"


def test_free_variables_are_those_not_bound() -> None:
    total = reduce("sum", (R,), load("x", (ROW, R), F32))
    assert total.variables == {ROW}
    assert scan("sum", R, load("x", (ROW, R), F32)).variables == {ROW, R}
    assert reduce("sum", (Var("r0", 1),), load("x", (ROW,), F32)).op == "load"


def test_a_scan_may_only_be_moved_to_a_variable_of_its_length() -> None:
    running = scan("sum", COLUMN, load("x", (ROW, COLUMN), F32))
    assert rewrite(running, {COLUMN: Var("z", 6).index}).payload[1] is Var("z", 6)
    with pytest.raises(VerificationError, match="scan"):
        rewrite(running, {COLUMN: ROW.index})


def test_an_unknown_op_or_a_wrong_number_of_arguments_is_refused_by_name() -> None:
    with pytest.raises(VerificationError, match="'frobnicate' with 1 arguments; known: abs, acos"):
        call("frobnicate", number(1))
    with pytest.raises(VerificationError, match="'add' with 1"):
        call("add", number(1))


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (call("add", load("x", (ROW, COLUMN.index + 1), F32), constant(2, F32)), "add(x[i0, i1 + 1], 2.0:float32)"),
        (reduce("sum", (R,), load("x", (ROW, R), F32)), "sum<r0<3>(x[i0, r0])"),
        (cast(load("x", (ROW,), F32), torch.float16), "float16(x[i0])"),
        (bitcast(load("x", (ROW,), F32), torch.int32), "bits_int32(x[i0])"),
        (part(reduce("welford", (R,), load("x", (R,), F32)), "m2"), "part.m2(welford<r0<3>(x[r0]))"),
        (wrap_index(at("k", ROW), 5), "wrap_index(k[i0], 5)"),
        (index_value(ROW.index * 6 + COLUMN), "(6*i0 + i1)"),
        (random("uniform", at("s", 0), index_value(ROW), 3), "random.uniform(s[0], (i0), 3)"),
    ],
)
def test_expressions_print_as_they_read(expr: Expr, text: str) -> None:
    assert str(expr) == text
