"""Products whose columns are read in slices become parts of what reads them."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.loop_lab import schedule
from tests.plugins.schedule.test_products import BF16, F32, HOPPER, Asked, declare
from turret.ir import Definition, LoopProgram, Ref, Template, call, cast, load, verify
from turret.ir.lowering import loop_variables
from turret.ir.text import parse


def gated(rows: int, columns: int, outputs: tuple[str, ...] = ("z",), shift: int | None = None) -> LoopProgram:
    """``y = x @ w; z = y[:, :n] * y[:, shift:]``, by default of the two halves."""
    x, w, y = declare("x", rows, 64), declare("w", 64, 2 * columns), declare("y", rows, 2 * columns)
    z = declare("z", rows, columns)
    loops = loop_variables(z.shape)
    row, column = (v.index for v in loops)
    shift = columns if shift is None else shift
    halves = [cast(load("y", (row, column + start), BF16), F32) for start in (0, shift)]
    mm = Template(torch.ops.aten.mm.default, (Ref("x"), Ref("w")), {}, (y,), kind="matmul", origins=("mm",))
    statements = mm, Definition(z, loops, cast(call("mul", *halves), BF16), ("mul",))
    return LoopProgram("test", (x, w), statements, tuple(map(Ref, outputs)))


def test_both_halves_are_products_of_the_readers_kernel() -> None:
    made = schedule(gated(32, 40), Asked("tiles"), target=HOPPER)
    verify(made)
    (kernel,) = made.kernels
    assert "y" not in made.memory.buffers and str(kernel).count("sum<") == 2
    assert str(parse(str(made))) == str(made)


@pytest.mark.parametrize(
    "program",
    [gated(32, 40, ("z", "y")), gated(32, 40, shift=20), gated(32, 40, shift=0)],
    ids=["returned", "overlapping", "read once"],
)
def test_others_are_in_memory(program: LoopProgram) -> None:
    made = schedule(program, Asked("tiles"), target=HOPPER)
    assert any(store.tensor == "y" for kernel in made.kernels for store in kernel.stores)


def test_a_call_stays_one() -> None:
    made = schedule(gated(32, 40), Asked("library"), target=HOPPER)
    assert len(made.templates) == 1 and len(made.kernels) == 1
