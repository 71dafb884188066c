"""Rows in groups: what a product of them means, how it is found again, and what is wrong about one."""

from __future__ import annotations

import attrs
import pytest
import torch

from turret.errors import VerificationError
from turret.ir import (
    Definition,
    Index,
    LoopProgram,
    Ref,
    TensorDecl,
    Var,
    call,
    cast,
    constant,
    contraction,
    load,
    reduce,
    verify,
    walk,
)
from turret.ir.analysis.contraction import group_ends, has_matrix_product
from turret.ir.analysis.groups import picked_group, row_groups_of
from turret.ir.lowering import loop_variables
from turret.testing.loops.interpreter import run_program

CPU = torch.device("cpu")


def declare(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> TensorDecl:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return TensorDecl(name, shape, tuple(strides), dtype, CPU)


def grouped(rows: int, columns: int, depth: int, groups: int) -> LoopProgram:
    x, w = declare("x", rows, depth), declare("w", groups, depth, columns)
    ends, out = declare("ends", groups, dtype=torch.int32), declare("out", rows, columns)
    loops = loop_variables(out.shape)
    row, column = (v.index for v in loops)
    along = Var("r0", depth)
    found = row_groups_of("ends", groups, row)
    left = load("x", (row, along), torch.float32)
    right = load("w", (Index.of_value(found.picked), along, column), torch.float32)
    summed = reduce("sum", (along,), call("mul", left, right))
    value = call("where", call("lt", found.node, constant(groups, torch.int64)), summed, constant(0, torch.float32))
    return LoopProgram("test", (x, w, ends), (Definition(out, loops, value),), (Ref("out"),))


def test_a_product_of_rows_in_groups_is_a_matrix_product_that_is_found_again() -> None:
    program = grouped(6, 5, 4, 3)
    verify(program)
    expr = program.statements[0].expr
    (node,) = [n for n in walk(expr) if n.op == "reduce"]
    found = contraction(node)
    assert found is not None and found.is_matrix and has_matrix_product(expr)
    assert [sorted(v.name for v in side) for side in (found.rows, found.columns, found.batch)] == [["i0"], ["i1"], []]
    assert found.groups is not None and (found.groups.ends, found.groups.count) == ("ends", 3)
    assert group_ends(expr) == {"ends"}


def test_a_factor_that_other_numbers_pick_varies_along_the_rows() -> None:
    row, along, column = (Var(name, 4) for name in ("i0", "r0", "i1"))
    number = load("numbers", (row,), torch.int64)
    assert picked_group(number) is None
    left, right = (
        load("x", (row, along), torch.float32),
        load("w", (Index.of_value(number), along, column), torch.float32),
    )
    found = contraction(reduce("sum", (along,), call("mul", left, right)))
    assert found is not None and found.groups is None and found.batch == {row} and not found.is_matrix


def test_rows_are_multiplied_by_their_groups_matrix_and_zeros_behind_all_groups() -> None:
    x, w = torch.randn(6, 4), torch.randn(3, 4, 5)
    (found,) = run_program(grouped(6, 5, 4, 3), [x, w, torch.tensor([2, 2, 5], dtype=torch.int32)])
    want = torch.cat([x[:2] @ w[0], x[2:5] @ w[2], torch.zeros(1, 5)])
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("wrong", [{"dtype": torch.int64}, {"shape": (4,)}, {"stride": (2,)}], ids=str)
def test_ends_of_another_layout_are_wrong(wrong: dict) -> None:
    program = grouped(6, 5, 4, 3)
    x, w, ends = program.inputs
    changed = attrs.evolve(program, inputs=(x, w, attrs.evolve(ends, **wrong)))
    with pytest.raises(VerificationError):
        verify(changed)


def test_the_number_of_a_group_has_bounds() -> None:
    found = row_groups_of("ends", 3, Var("i0", 6).index)
    assert Index.of_value(found.node).bounds() == (0, 3)
    assert cast(found.node, torch.int64) is found.node
