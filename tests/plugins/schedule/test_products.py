"""How matrix products are computed is chosen by what is known of the device, or by who is asked."""

from __future__ import annotations

import sys

import attrs
import pytest
import torch

import turret
from tests.plugins.loop_lab import schedule
from turret.errors import StageError
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target
from turret.ir import (
    Definition,
    Index,
    LoopProgram,
    ProductCandidate,
    Ref,
    Schedule,
    StridedView,
    Template,
    TensorDecl,
    call,
    cast,
    check_index,
    constant,
    load,
    verify,
)
from turret.ir.lowering import loop_variables
from turret.ir.text import parse

BF16, F32 = torch.bfloat16, torch.float32
HOPPER = Target("cuda", 0, "sm_90", 132)
DEVICE = torch.device("cuda")


def declare(name: str, *shape: int, dtype: torch.dtype = BF16) -> TensorDecl:
    return TensorDecl(name, shape, (shape[1], 1), dtype, DEVICE)


def linear(
    rows: int, columns: int, depth: int, activation: bool = False, stored: bool = True, dtype: torch.dtype = BF16
) -> LoopProgram:
    """``relu(x @ w.t()) @ v`` up to the first or the second product; ``stored`` says whether ``w`` lies transposed."""
    x, y = declare("x", rows, depth, dtype=dtype), declare("y", rows, columns, dtype=dtype)
    right = declare("w", depth, columns, dtype=dtype)
    inputs, statements = [x, right], []
    if stored:
        inputs[1] = declare("w", columns, depth, dtype=dtype)
        right = TensorDecl("w_view", right.shape, (1, depth), dtype, DEVICE)
        statements.append(StridedView(right, "w", 0))
    mm = torch.ops.aten.mm.default
    statements.append(Template(mm, (Ref("x"), Ref(right.name)), {}, (y,), kind="matmul", origins=("mm",)))
    if activation:
        loops = loop_variables(y.shape)
        value = call("max", cast(load("y", loops, dtype), F32), constant(0.0, F32))
        statements.append(Definition(attrs.evolve(y, name="z"), loops, cast(value, dtype)))
        v, out = declare("v", columns, 8, dtype=dtype), declare("out", rows, 8, dtype=dtype)
        inputs.append(v)
        statements.append(Template(mm, (Ref("z"), Ref("v")), {}, (out,), kind="matmul", origins=("mm_1",)))
        y = out
    return LoopProgram("test", tuple(inputs), tuple(statements), (Ref(y.name),))


def forms(made: Schedule) -> list[str]:
    return [choice.form for choice in made.choices]


@pytest.mark.parametrize(
    ("sizes", "form"),
    [
        ((1, 3072, 2048), "rows"),
        ((4, 2048, 2048), "tiles"),
        ((4, 128256, 4096), "library"),  # all of it is reading, which a call does as well
        ((4096, 50265, 1024), "tiles"),
        ((4096, 1024, 1001), "padded"),
        ((64, 257, 1024), "library"),
    ],
    ids=str,
)
def test_what_was_measured_chooses_the_form(sizes: tuple[int, int, int], form: str) -> None:
    assert forms(schedule(linear(*sizes), target=HOPPER)) == [form]


def test_what_uses_a_product_of_few_rows_is_part_of_its_kernel() -> None:
    made = schedule(linear(4, 2048, 2048, activation=True), target=HOPPER)
    assert forms(made)[0] == "tiles"
    assert len(made.kernels) == 2 - len(made.templates)
    assert "y" not in made.memory.buffers


def test_what_was_not_measured_stays_a_call_without_a_choice() -> None:
    for program, target in (
        (linear(1, 3072, 2048, stored=False), HOPPER),  # rows that lie side by side
        (linear(1, 3072, 2048, dtype=F32), HOPPER),
        (linear(4096, 8, 3072), HOPPER),  # few columns
        (linear(4096, 4096, 4096), HOPPER),  # tiles are as fast at best
        (linear(1, 3072, 2048), Target("cuda", 0, "sm_80", 108)),
        (linear(1, 3072, 2048), None),
    ):
        made = schedule(program, target=target)
        assert [step.kind for step in made.templates] == ["matmul"]
        assert not made.choices


class Asked:
    """Plugin: notes what it is asked, and forbids all but one form."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.candidates: list[ProductCandidate] = []

    @hookimpl
    def turret_choice_cost(self, candidate: ProductCandidate) -> float:
        self.candidates.append(candidate)
        return 1.5 if candidate.form == self.form else float("inf")


def test_a_plugin_chooses_and_is_told_the_product_with_what_comes_behind() -> None:
    asked = Asked("tiles")
    made = schedule(linear(64, 40, 24, activation=True), asked, target=HOPPER)
    assert forms(made) == ["tiles", "tiles"]
    first = asked.candidates[0]
    assert (first.rows, first.columns, first.depth, first.batch) == (64, 40, 24, 1)
    assert first.epilogue_bytes == 2 * 64 * 40 * 2
    assert len(first.schedule.kernels) == 1
    assert first.schedule.program.outputs == (Ref("z"),)
    verify(first.schedule)
    by_call = next(c for c in asked.candidates if c.form == "library").schedule
    assert len(by_call.templates) == 1 and len(by_call.kernels) == 1


@pytest.mark.parametrize("form", ["library", "tiles", "padded"])
def test_schedules_with_choices_are_their_text(form: str) -> None:
    made = schedule(linear(64, 41, 24), Asked(form), target=HOPPER)
    verify(made)
    assert forms(made) == [form]
    again = parse(str(made))
    assert str(again) == str(made)
    assert again.choices == made.choices


def test_layers_that_are_alike_are_asked_once() -> None:
    one = linear(8, 24, 24)
    x, w = one.inputs
    view = one.statements[0]
    y = declare("y", 8, 24)
    template = attrs.evolve(one.statements[1], outputs=(y,))
    second = attrs.evolve(template, args=(Ref("y"), Ref("w_view")), outputs=(attrs.evolve(y, name="z"),))
    program = LoopProgram("test", (x, w), (view, template, second), (Ref("z"),))
    asked = Asked("library")
    schedule(program, asked, target=HOPPER)
    assert len(asked.candidates) == 2


def test_a_choice_that_fails_is_a_failure_of_its_plugin() -> None:
    class Broken:
        @hookimpl
        def turret_choice_cost(self) -> float:
            raise RuntimeError("out of ideas")

    layer, x = torch.nn.Linear(4, 4).eval(), torch.randn(1, 4)
    with torch.no_grad():
        with pytest.raises(StageError, match=r"stage 'schedule' \(plugin [\w.<>]*Broken\) failed.*out of ideas"):
            turret.compile(layer, plugins=[Broken()], options={"on_error": "raise", "cache": False})(x)
        with pytest.warns(turret.TurretWarning, match="out of ideas"):
            found = turret.compile(layer, plugins=[Broken()], options={"cache": False})(x)
        torch.testing.assert_close(found, layer(x))


def with_prologue(rows: int, kind: str) -> LoopProgram:
    """``x @ w.t()`` whose weights are made of int8 (``dequantised``), or picked by row (``picked``: a batch of one
    column each)."""
    columns, depth = 4096, 2048
    x = declare("x", rows, depth)
    if kind == "dequantised":
        q, w, y = (
            declare("q", columns, depth, dtype=torch.int8),
            declare("w", columns, depth),
            declare("y", rows, columns),
        )
        loops = loop_variables(w.shape)
        made = cast(load("q", loops, torch.int8), BF16)
        view = TensorDecl("w_view", (depth, columns), (1, depth), BF16, DEVICE)
        mm = Template(torch.ops.aten.mm.default, (Ref("x"), Ref("w_view")), {}, (y,), kind="matmul", origins=("mm",))
        return LoopProgram("test", (x, q), (Definition(w, loops, made), StridedView(view, "w", 0), mm), (Ref("y"),))

    def stack(name: str, *shape: int) -> TensorDecl:
        return TensorDecl(name, shape, (shape[1] * shape[2], shape[2], 1), BF16, DEVICE)

    ids = TensorDecl("ids", (rows,), (1,), torch.int64, DEVICE)
    all_weights, w, y = stack("all", 8, columns, depth), stack("w", rows, columns, depth), stack("y", rows, columns, 1)
    column = TensorDecl("column", (rows, depth, 1), (depth, 1, 1), BF16, DEVICE)
    loops = loop_variables(w.shape)
    number = Index.of_value(check_index(load("ids", loops[:1], torch.int64), 8))
    picked = Definition(w, loops, load("all", (number, *(v.index for v in loops[1:])), BF16))
    operands = Ref("w"), Ref("column")
    bmm = Template(torch.ops.aten.bmm.default, operands, {}, (y,), kind="matmul", origins=("bmm",))
    statements = (picked, StridedView(column, "x", 0), bmm)
    return LoopProgram("test", (x, all_weights, ids), statements, (Ref("y"),))


@pytest.mark.parametrize(
    ("rows", "kind", "form"),
    [
        (1, "dequantised", "rows"),
        (8, "dequantised", "tiles"),
        (64, "dequantised", "tiles"),
        (2, "picked", "rows"),
        (1, "picked", "rows"),
    ],
)
def test_weights_that_a_call_would_want_copied_are_read_as_they_are(rows: int, kind: str, form: str) -> None:
    made = schedule(with_prologue(rows, kind), target=HOPPER)
    verify(made)
    assert forms(made) == [form]
    assert len(made.kernels) == 1 and not made.templates
    assert "w" not in made.memory.buffers


def test_a_candidate_knows_what_its_prologues_move() -> None:
    asked = Asked("library")
    made = schedule(with_prologue(8, "dequantised"), asked, target=HOPPER)
    elements = 4096 * 2048
    assert {(c.prologue_bytes, c.spared_bytes) for c in asked.candidates} == {(3 * elements, elements)}
    assert all(len(c.schedule.kernels) == 1 + (c.form == "padded") for c in asked.candidates)
    assert len(made.kernels) == 1 and len(made.templates) == 1


def test_weights_that_others_read_too_are_no_prologue() -> None:
    program = with_prologue(8, "dequantised")
    asked = Asked("library")
    schedule(attrs.evolve(program, outputs=(Ref("y"), Ref("w"))), asked, target=HOPPER)
    assert {(c.prologue_bytes, c.spared_bytes) for c in asked.candidates} == {(0, 0)}


def in_groups(rows: int, columns: int, depth: int, groups: int) -> LoopProgram:
    x, y = declare("x", rows, depth), declare("y", rows, columns)
    w = TensorDecl("w", (groups, depth, columns), (depth * columns, 1, depth), BF16, DEVICE)
    ends = TensorDecl("ends", (groups,), (1,), torch.int32, DEVICE)
    arguments, op = (Ref("x"), Ref("w"), Ref("ends")), torch.ops.aten._grouped_mm.default
    call_ = Template(op, arguments, {}, (y,), kind="matmul", origins=("grouped",))
    return LoopProgram("test", (x, w, ends), (call_,), (Ref("y"),))


@pytest.mark.parametrize(
    ("sizes", "form"),
    [((8192, 14336, 4096, 8), "library"), ((16384, 768, 2048, 128), "tiles"), ((256, 14336, 4096, 8), "tiles")],
    ids=str,
)
def test_groups_that_mostly_read_weights_are_tiles(sizes: tuple[int, ...], form: str) -> None:
    made = schedule(in_groups(*sizes), target=HOPPER)
    verify(made)
    assert forms(made) == [form]
    again = parse(str(made))
    assert str(again) == str(made) and again.choices == made.choices


def test_groups_that_others_ask_for_stay_calls() -> None:
    program = in_groups(64, 64, 64, 4)
    x, w, ends = program.inputs
    for changed in (
        attrs.evolve(ends, dtype=torch.int64),
        attrs.evolve(ends, stride=(2,)),
        attrs.evolve(ends, shape=(5,)),
    ):
        made = schedule(attrs.evolve(program, inputs=(x, w, changed)), Asked("tiles"), target=HOPPER)
        assert len(made.templates) == 1 and not made.choices


def deep(layers: int) -> LoopProgram:
    """``relu(x @ w)`` over and over, with weights of their own."""
    mm, inputs, statements = torch.ops.aten.mm.default, [declare("x0", 4, 256)], []
    for number in range(layers):
        weight, y = declare(f"w{number}", 256, 256), declare(f"y{number}", 4, 256)
        inputs.append(weight)
        operands = (Ref(f"x{number}"), Ref(weight.name))
        statements.append(Template(mm, operands, {}, (y,), kind="matmul", origins=(f"mm_{number}",)))
        loops = loop_variables(y.shape)
        value = cast(call("max", cast(load(y.name, loops, BF16), F32), constant(0.0, F32)), BF16)
        statements.append(Definition(declare(f"x{number + 1}", 4, 256), loops, value))
    return LoopProgram("deep", tuple(inputs), tuple(statements), (Ref(f"x{layers}"),))


def calls_of_scheduling(layers: int) -> int:
    """How many calls of Python's functions a schedule of so many layers takes: what is the same on every machine."""
    program, counted = deep(layers), [0]

    def count(frame: object, event: str, argument: object) -> None:
        counted[0] += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        made = schedule(program, target=HOPPER)
    finally:
        sys.setprofile(previous)
    assert len(made.choices) == layers
    return counted[0]


def test_scheduling_a_layer_takes_as_long_in_a_deep_model_as_in_a_shallow_one() -> None:
    calls_of_scheduling(4)  # what is remembered from one schedule to the next
    few, more, most = map(calls_of_scheduling, (8, 32, 160))
    assert (most - more) / 128 <= 1.02 * (more - few) / 24


@pytest.mark.parametrize("shape", [(40,), (1, 40), (24, 1), (24, 40), ()])
def test_what_the_host_adds_to_a_product_is_part_of_what_reads_it(shape: tuple[int, ...]) -> None:
    x, w, b = torch.randn(24, 300), torch.randn(300, 40), torch.randn(shape)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w).sin()

    seen = list[Schedule]()

    class Watch:
        @hookimpl
        def turret_event(self, event: object) -> None:
            made = getattr(event, "product", None)
            if isinstance(made, Schedule):
                seen.append(made)

    got = turret.compile(function, options={"on_error": "raise", "cache": False}, plugins=[Watch()])(x, w, b)
    torch.testing.assert_close(got, function(x, w, b))
    (made,) = seen
    assert [str(step.op) for step in made.externs] == ["aten.mm.default"]
    assert len(made.kernels) == 1


@pytest.mark.parametrize("factor", [{"beta": 2}, {"alpha": 3}, {"beta": 0}])
def test_what_is_added_to_a_product_with_factors_stays_with_it(factor: dict[str, int]) -> None:
    x, w, b = torch.randn(24, 300), torch.randn(300, 40), torch.randn(40)
    compiled = turret.compile(lambda x, w, b: torch.addmm(b, x, w, **factor).sin(), options={"on_error": "raise"})
    torch.testing.assert_close(compiled(x, w, b), torch.addmm(b, x, w, **factor).sin())
