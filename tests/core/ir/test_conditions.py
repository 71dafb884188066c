"""Conditions around row reductions and scans: what of them reaches the operands."""

from __future__ import annotations

import pytest
import torch

from turret.ir import (
    Expr,
    Index,
    Kernel,
    Store,
    TensorDecl,
    Var,
    call,
    check_index,
    constant,
    index_value,
    load,
    reduce,
    scan,
)
from turret.ir.conditions import both, mask_operands
from turret.ir.expr import walk
from turret.ir.nest import Nest, nest_of

X, R = Var("i0", 5), Var("r0", 9)
F32, I64, BOOL = torch.float32, torch.int64, torch.bool
CPU = torch.device("cpu")
TENSORS = {
    "table": TensorDecl("table", (7, 9), (9, 1), F32, CPU),
    "at": TensorDecl("at", (5,), (1,), I64, CPU),
    "row": TensorDecl("row", (5,), (1,), BOOL, CPU),
    "element": TensorDecl("element", (5, 9), (9, 1), BOOL, CPU),
    "out": TensorDecl("out", (5, 9), (9, 1), F32, CPU),
    "sums": TensorDecl("sums", (5,), (1,), F32, CPU),
}
GATHERED = load("table", (Index.of_value(check_index(load("at", (X,), I64), 7)), R), F32)
PLAIN = load("table", (X, R), F32)
ROW, ELEMENT = load("row", (X,), BOOL), load("element", (X, R), BOOL)
RESULTS = {"reduction": lambda body: reduce("sum", (R,), body), "scan": lambda body: scan("sum", R, body)}


def masked(condition: Expr, inside: Expr) -> Expr:
    return call("masked", condition, inside, constant(0, inside.dtype))


def nest(expr: Expr, *more: Store) -> Nest:
    return nest_of(Kernel("k", (X,), (R,), (Store("out", (X.index, R.index), expr), *more)), TENSORS)


def guarded(expr: Expr, *more: Store) -> Expr:
    return mask_operands(nest(expr, *more)).stores[0].expr


@pytest.fixture(params=RESULTS)
def result(request: pytest.FixtureRequest):
    return RESULTS[request.param]


def test_a_condition_that_knows_nothing_of_the_row_is_that_of_the_operands(result) -> None:
    assert guarded(masked(ROW, result(GATHERED))) is masked(ROW, result(masked(ROW, GATHERED)))


def test_operands_are_wanted_where_some_element_of_the_row_wants_the_result(result) -> None:
    anywhere = reduce("any", (R,), ELEMENT)
    assert guarded(masked(ELEMENT, result(GATHERED))) is masked(ELEMENT, result(masked(anywhere, GATHERED)))


@pytest.mark.parametrize(
    "condition",
    [
        call("ge", index_value(R), constant(3, I64)),
        call("lt", index_value(R), constant(3, I64)),
        call("eq", index_value(R), constant(4, I64)),
    ],
    ids=str,
)
def test_what_holds_somewhere_in_every_row_is_no_condition(result, condition: Expr) -> None:
    whole = masked(condition, result(GATHERED))
    assert guarded(whole) is whole
    assert guarded(masked(call("logical_and", ROW, condition), result(GATHERED))).args[1] is result(
        masked(ROW, GATHERED)
    )


def test_conditions_around_each_other_hold_together(result) -> None:
    wanted = call("logical_and", ROW, reduce("any", (R,), ELEMENT))
    found = guarded(masked(ROW, masked(ELEMENT, result(GATHERED))))
    assert found is masked(ROW, masked(ELEMENT, result(masked(wanted, GATHERED))))


def test_what_can_be_read_anywhere_is_left_alone(result) -> None:
    kernel = nest(masked(ELEMENT, result(PLAIN)))
    assert mask_operands(kernel).stores[0].expr is kernel.stores[0].expr


def test_what_is_computed_anyway_needs_no_condition() -> None:
    total = reduce("sum", (R,), GATHERED)
    whole = masked(ELEMENT, total)
    assert guarded(whole, Store("sums", (X.index,), total)) is whole


def test_reductions_in_one_another_are_guarded_alike() -> None:
    anywhere = reduce("any", (R,), ELEMENT)
    best = reduce("max", (R,), GATHERED)
    total = reduce("sum", (R,), call("sub", GATHERED, best))
    inside = call("sub", GATHERED, reduce("max", (R,), masked(anywhere, GATHERED)))
    assert guarded(masked(ELEMENT, total)) is masked(ELEMENT, reduce("sum", (R,), masked(anywhere, inside)))


def test_a_reduction_that_rebinds_a_loop_of_the_condition_is_guarded() -> None:
    j = Var("j0", 9)
    body = load("table", (Index.of_value(check_index(load("at", (X,), I64), 7)), j), F32)
    condition = load("element", (X, j), BOOL)
    store = Store("out", (X.index, j.index), masked(condition, reduce("sum", (j,), body)))
    found = mask_operands(nest_of(Kernel("k", (X, j), (), (store,)), TENSORS)).stores[0].expr
    assert found is masked(condition, reduce("sum", (j,), masked(reduce("any", (j,), condition), body)))


def test_an_inner_condition_that_can_fail_is_asked_under_the_outer_one() -> None:
    fails = call("gt", GATHERED, constant(0, F32))

    def needs_mask(expr: Expr) -> bool:
        return any(node.op == "check_index" for node in walk(expr))

    assert both(None, fails, needs_mask) is fails
    assert both(ROW, ELEMENT, needs_mask) is call("logical_and", ROW, ELEMENT)
    assert both(ROW, fails, needs_mask) is masked(ROW, fails)


def test_what_a_code_generator_reports_is_wanted_like_loads() -> None:
    quotient = call("floordiv", load("at", (X,), I64), load("at", (X,), I64))
    total = reduce("sum", (R,), call("add", quotient, index_value(R)))
    store = Store("out", (X.index, R.index), masked(ELEMENT, total))
    kernel = nest_of(Kernel("k", (X,), (R,), (store,)), TENSORS)
    assert mask_operands(kernel).stores[0].expr is store.expr
    found = mask_operands(kernel, lambda node: node.op == "floordiv").stores[0].expr
    assert found.args[1].args[0].op == "masked"
