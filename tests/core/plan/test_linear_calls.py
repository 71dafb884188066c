"""Products by a transposed matrix run as one call, and give what the product of the view gives, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from turret.plan import Allocate, Call, Free, Plan, Slot, SlotRef, View
from turret.plan.executor import load

ROWS, WEIGHT, BIAS, TURNED, RESULT = range(5)
PRODUCTS = {
    "aten::mm.out": (SlotRef(ROWS), SlotRef(TURNED)),
    "aten::addmm.out": (SlotRef(BIAS), SlotRef(ROWS), SlotRef(TURNED)),
}


def product_plan(op: str, *, steps: tuple[Any, ...] = (), outputs: tuple[int, ...] = (), bias: int = 5) -> Plan:
    """``rows @ weight.t() (+ bias)``, with steps between view and product, and outputs beside the product."""
    bias_layout = ((bias,), (1,)) if bias else ((4, 5), (5, 1))
    slots = (
        Slot("rows", (4, 3), (3, 1), "float32", "cpu", "input", 0),
        Slot("weight", (5, 3), (3, 1), "float32", "cpu", "input", 1),
        Slot("bias", *bias_layout, "float32", "cpu", "input", 2),
        Slot("turned", (3, 5), (1, 3), "float32", "cpu", "view"),
        Slot("result", (4, 5), (5, 1), "float32", "cpu", "own"),
    )
    call = Call(op, PRODUCTS[op], {}, into=RESULT)
    return Plan(
        name="product",
        device="cpu",
        slots=slots,
        inputs=(ROWS, WEIGHT, BIAS),
        steps=(View(TURNED, WEIGHT, 0), Allocate(RESULT), *steps, call),
        outputs=tuple(map(SlotRef, (RESULT, *outputs))),
    )


def inputs(bias: tuple[int, ...] = (5,)) -> list[torch.Tensor]:
    return [torch.randn(4, 3), torch.randn(5, 3, requires_grad=True), torch.randn(bias)]


def expected(op: str, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    turned = weight.detach().t()
    return torch.mm(rows, turned) if op == "aten::mm.out" else torch.addmm(bias, rows, turned)


@pytest.mark.parametrize("op", PRODUCTS)
def test_a_product_by_a_view_that_nothing_else_takes_is_one_call(op: str) -> None:
    run, given = load(product_plan(op)), inputs()
    assert "linear(" in run.source and ".t()" not in run.source
    torch.testing.assert_close(run(list(given))[0], expected(op, *given), rtol=0, atol=0)


def test_a_replaced_linear_of_the_program_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *args, **kwargs: pytest.fail("called"))
    given = inputs()
    found = load(product_plan("aten::addmm.out"))(list(given))[0]
    torch.testing.assert_close(found, expected("aten::addmm.out", *given), rtol=0, atol=0)


@pytest.mark.parametrize(
    "plan",
    [
        product_plan("aten::addmm.out", outputs=(TURNED,)),
        product_plan("aten::addmm.out", steps=(Call("aten::relu_.default", (SlotRef(TURNED),), {}),)),
        product_plan("aten::addmm.out", steps=(Free((WEIGHT,)),)),
        product_plan("aten::addmm.out", bias=0),
    ],
    ids=["an output", "taken by another call", "of memory dropped before", "with a bias for each row"],
)
def test_another_product_takes_its_view(plan: Plan) -> None:
    run = load(plan)
    given = inputs(tuple(plan.slots[BIAS].shape))
    assert "linear(" not in run.source and f"t{TURNED} = t{WEIGHT}.t()" in run.source
    with torch.no_grad():
        found = run([given[0], given[1].clone(), given[2]])[0]
    rectified = given[1].relu() if any(isinstance(s, Call) and "relu" in s.op for s in plan.steps) else given[1]
    torch.testing.assert_close(found, expected("aten::addmm.out", given[0], rectified, given[2]), rtol=0, atol=0)


def test_a_view_begins_where_its_base_does() -> None:
    slots = (
        Slot("x", (2, 6), (6, 1), "float32", "cpu", "input", 0),
        Slot("flat", (12,), (1,), "float32", "cpu", "view"),
        Slot("tail", (4,), (1,), "float32", "cpu", "view"),
    )
    plan = Plan("views", "cpu", slots, (0,), (View(1, 0, 0), View(2, 0, 8)), (SlotRef(1), SlotRef(2)))
    x = torch.arange(20.0)[5:17].view(2, 6)
    flat, tail = load(plan)([x])
    assert flat.tolist() == list(range(5, 17)) and tail.tolist() == [13, 14, 15, 16]
