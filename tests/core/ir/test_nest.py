"""Loop nests: every rewrite of one computes what the kernel did, whatever divides, sums or scatters in it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.loop_lab import at, index_at, number, points, value_at
from turret.errors import UnsupportedError
from turret.ir import Expr, Index, Kernel, Store, TensorDecl, Var, call, constant, index_value, load, reduce, scan
from turret.ir.nest import (
    Nest,
    adopt_row,
    always_inside,
    combined,
    flat_load,
    fresh,
    map_roots,
    nest_of,
    scan_variable,
    split_loops,
)
from turret.ir.nest import points as all_points

I64, F32 = torch.int64, torch.float32
L, J, R = Var("i0", 12), Var("i1", 8), Var("r0", 6)
X = torch.arange(96).reshape(12, 8) % 37 - 11
CPU = torch.device("cpu")
DECLARED = {"x": TensorDecl("x", (12, 8), (8, 1), I64, CPU), "y": TensorDecl("y", (8, 12), (12, 1), I64, CPU)}


@st.composite
def indices(draw: st.DrawFn) -> Index:
    """An index in [0, 12): quotients and remainders of one loop, or of both as one number."""
    whole = draw(st.sampled_from((L.index, J.index, L.index * 8 + J.index)))
    divisor = draw(st.sampled_from((2, 3, 4, 6, 8)))
    return (whole // divisor if draw(st.booleans()) else whole % divisor) % 12


@st.composite
def values(draw: st.DrawFn) -> Expr:
    row, column = draw(indices()), draw(indices()) % 8
    read = call("add", at("x", row, column), index_value(draw(indices())))
    if draw(st.booleans()):
        return read
    return call("sub", read, reduce("sum", (R,), at("x", R.index * 2, column)))


def kernel_of(value: Expr) -> Kernel:
    return Kernel("k", (L, J), (), (Store("y", (J.index, L.index), value),))


def flat(nest: Nest) -> Nest:
    return map_roots(nest, lambda node: flat_load(node, DECLARED) if node.op == "load" else None)


def written(nest: Nest) -> dict[int, int]:
    """What a nest of flat accesses leaves in ``y``, by offset."""
    memory = {"x": X.flatten()}
    return {
        index_at(store.offset, point, memory): value_at(store.expr, point, memory, {})
        for point in points(nest.loops)
        for store in nest.stores
    }


@settings(max_examples=80, deadline=None)
@given(values())
def test_splitting_loops_changes_no_element(value: Expr) -> None:
    nest = flat(nest_of(kernel_of(value), DECLARED))
    expected = {j * 12 + i: value_at(value, {L: i, J: j}, {"x": X}, {}) for i in range(12) for j in range(8)}
    assert written(nest) == expected
    apart = split_loops(nest, ())
    assert written(apart) == expected
    assert math.prod(v.extent for v in apart.loops) == 96


def test_a_divisor_of_a_loop_leaves_no_division() -> None:
    value = at("x", L.index // 4, L.index % 4)
    nest = split_loops(nest_of(kernel_of(value), DECLARED), ())
    assert [v.extent for v in nest.loops] == [3, 4, 8]
    assert not any("//" in str(index) or "%" in str(index) for index in nest.indices())


def test_loops_that_are_fixed_stay() -> None:
    value = at("x", L.index // 4, J.index // 2)
    nest = split_loops(nest_of(kernel_of(value), DECLARED), {L})
    assert L in nest.loops
    assert J not in nest.loops


def test_loops_of_one_step_are_left_out() -> None:
    one = Var("i2", 1)
    kernel = Kernel("k", (L, one, J), (), (Store("y", (J.index, L.index), at("x", L, J)),))
    assert nest_of(kernel, DECLARED).loops == (L, J)


def test_a_long_reduction_becomes_the_row_and_others_like_it_share_its_variable() -> None:
    other = Var("r1", 6)
    sums = call("add", reduce("sum", (R,), at("x", L, R)), reduce("max", (other,), at("x", L, other)))
    nest = flat(nest_of(Kernel("k", (L,), (), (Store("y", (Index.constant(0), L.index), sums),)), DECLARED))
    adopted = adopt_row(nest, lambda loops: False)
    assert adopted.inner in ((R,), (other,))
    assert {node.payload.variables for node in adopted.reductions} == {adopted.inner}
    assert adopt_row(nest, lambda loops: True).inner == ()


def test_a_scan_goes_along_one_variable() -> None:
    def over(*variables: Var) -> Nest:
        total = number(0)
        for variable in variables:
            total = call("add", total, scan("sum", variable, at("x", L, J)))
        return nest_of(kernel_of(total), DECLARED)

    assert scan_variable(over()) is None
    assert scan_variable(over(J, J)) is J
    with pytest.raises(UnsupportedError, match="several variables"):
        scan_variable(over(L, J))


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_terms_combine_to_their_reduction(kind: str, count: int) -> None:
    terms = [at("x", i, 3) for i in range(count)]
    if not count and kind == "max":
        with pytest.raises(UnsupportedError, match="no elements"):
            combined(kind, terms, I64)
    else:
        expected = {"sum": sum, "max": max}[kind](X[:count, 3].tolist())
        assert value_at(combined(kind, terms, I64), {}, {"x": X}, {}) == expected


def test_sums_of_floats_start_at_positive_zero() -> None:
    assert combined("sum", [], F32) is constant(0, F32)
    start = combined("sum", [call("neg", index_value(L.index))] * 2, I64)
    assert start.op == "add" and all(arg.op != "const" for arg in start.args)
    assert any(arg is constant(0, F32) for arg in combined("sum", [call("sin", constant(1.0, F32))], F32).args)


def test_points_are_in_the_order_of_the_loops() -> None:
    low, high = Var("a", 2), Var("b", 3)
    found = [(p[low].const, p[high].const) for p in all_points((low, high))]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(("offset", "inside"), [(L.index * 8 + J.index, True), (L.index * 8 + J.index + 1, False)])
def test_an_offset_is_inside_where_its_bounds_say_so(offset: Index, inside: bool) -> None:
    assert always_inside(offset, DECLARED["x"]) is inside


def test_a_fresh_variable_has_a_name_of_its_own() -> None:
    nest = nest_of(kernel_of(at("x", L, J)), DECLARED)
    assert fresh(nest, "i", 3).name not in {"i0", "i1"}


def test_loops_of_a_scatter_are_independent_where_each_iteration_has_elements_of_its_own():
    i, j = Var("i0", 4), Var("i1", 5)
    place = Index.of_value(load("at", (j,), I64))
    added = Store("out", (i.index, place), load("x", (i, j), torch.float32), "add")
    plain = Store("copy", (i.index, j.index), load("x", (i, j), torch.float32))
    tensors = {
        name: TensorDecl(name, (4, 5), (5, 1), torch.float32, torch.device("cpu")) for name in ("out", "x", "copy")
    }
    tensors["at"] = TensorDecl("at", (5,), (1,), torch.int64, torch.device("cpu"))
    assert nest_of(Kernel("k", (i, j), (), (plain,)), tensors).independent == (i, j)
    assert nest_of(Kernel("k", (i, j), (), (plain, added)), tensors).independent == (i,)
