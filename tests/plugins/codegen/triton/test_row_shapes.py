"""How rows become loops: short ones unrolled, stores in the one pass, layouts by vote, parts of length one."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, element
from tests.plugins.codegen.triton.triton_lab import check
from turret.ir import Kernel, Store, call, index_value, part, reduce
from turret.ir.index import Var
from turret.plugins.codegen.triton import DeviceProperties, emit

F32 = torch.float32
WHOLE = {"properties": DeviceProperties(multiprocessors=0)}


def columns(rows: int, width: int, kind: str, values: torch.Tensor) -> Case:
    """A reduction over the rows of a matrix, so that the results lie side by side as what they are made of does."""
    i, j = Var("i", width), Var("j", rows)
    value = element("x", values, j, i)
    if kind.startswith("arg"):
        expr = reduce(kind, (j,), value, index_value(j))
    elif kind in ("mean", "m2"):
        expr = part(reduce("welford", (j,), value), kind)
    else:
        expr = reduce(kind, (j,), value)
    out = torch.zeros(width, dtype=expr.dtype)
    return Case(Kernel("k", (i,), (j,), (Store("out", (i.index,), expr),)), {"x": values, "out": out})


def special(rows: int, width: int) -> torch.Tensor:
    """Values with equal ones, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(0)
    picks = torch.tensor([0.0, 0.5, 1.0, 1.0, -2.0, torch.inf, -torch.inf, torch.nan])
    return picks[torch.randint(0, 8, (rows, width), generator=generator)]


@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max", "argmin", "argmax"])
def test_a_short_row_across_memory_is_unrolled_where_lanes_abound(kind: str) -> None:
    values = special(9, 1 << 15)
    case = columns(9, 1 << 15, kind, values)
    (kernel,) = emit(case.kernel, case.declarations, **WHOLE)
    assert "RBLOCK" not in kernel.source
    check([case], options=WHOLE)


@pytest.mark.parametrize("rows, width", [(9, 100), (100, 1 << 15)])
def test_a_row_that_is_long_or_has_few_lanes_stays_a_row(rows: int, width: int) -> None:
    case = columns(rows, width, "sum", torch.randn(rows, width))
    assert all("RBLOCK" in k.source for k in emit(case.kernel, case.declarations, **WHOLE))


def test_a_short_row_along_memory_stays_a_row() -> None:
    values = torch.randn(1 << 15, 8)
    i, j = Var("i", 1 << 15), Var("j", 8)
    total = reduce("sum", (j,), element("x", values, i, j))
    case = Case(Kernel("k", (i,), (j,), (Store("out", (i.index,), total),)), {"x": values, "out": torch.zeros(1 << 15)})
    assert "RBLOCK" in emit(case.kernel, case.declarations, **WHOLE)[0].source


def test_what_is_stored_along_the_row_goes_along_with_the_only_pass() -> None:
    values = torch.randn(700, 40)
    i, j = Var("i", 40), Var("j", 700)
    square = call("square", element("x", values, j, i))
    stores = (Store("square", (j.index, i.index), square), Store("out", (i.index,), reduce("sum", (j,), square)))
    tensors = {"x": values, "square": torch.zeros(700, 40), "out": torch.zeros(40)}
    case = Case(Kernel("k", (i,), (j,), stores), tensors)
    (kernel,) = emit(case.kernel, case.declarations, **WHOLE)
    assert kernel.source.count("for ") == 1
    check([case], options=WHOLE, rtol=1e-5, atol=1e-3)


def test_what_needs_the_rows_result_is_stored_in_a_pass_of_its_own() -> None:
    values = torch.randn(700, 40)
    i, j = Var("i", 40), Var("j", 700)
    value = element("x", values, j, i)
    total = reduce("sum", (j,), value)
    stores = (Store("apart", (j.index, i.index), call("sub", value, total)), Store("out", (i.index,), total))
    case = Case(Kernel("k", (i,), (j,), stores), {"x": values, "apart": torch.zeros(700, 40), "out": torch.zeros(40)})
    (kernel,) = emit(case.kernel, case.declarations, **WHOLE)
    assert kernel.source.count("for ") == 2
    check([case], options=WHOLE, rtol=1e-5, atol=1e-3)


def test_columns_are_split_where_most_tensors_lie_so_though_one_does_not() -> None:
    width, rows = 64, 8192
    i, j = Var("i", width), Var("j", rows)
    odd, a, b = torch.randn(width, rows), torch.randn(rows, width), torch.randn(rows, width)
    total = call("add", call("add", element("odd", odd, i, j), element("a", a, j, i)), element("b", b, j, i))
    case = Case(
        Kernel("k", (i,), (j,), (Store("out", (i.index,), reduce("sum", (j,), total)),)),
        {"odd": odd, "a": a, "b": b, "out": torch.zeros(width)},
    )
    kernels = emit(case.kernel, case.declarations, DeviceProperties(multiprocessors=132))
    assert len(kernels) == 2
    assert dict(kernels[0].configs[0].constants)["XBLOCK"] > 1
    check([case], options={"properties": DeviceProperties(multiprocessors=132)}, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["mean", "m2"])
def test_a_part_of_one_outermost_step_binds_only_the_loops_inside(kind: str) -> None:
    n, c, w = Var("n", 16), Var("c", 32), Var("w", 196)
    values = torch.randn(16, 196, 32)
    moments = reduce("welford", (n, w), element("x", values, n, w, c))
    case = Case(
        Kernel("k", (c,), (n, w), (Store("out", (c.index,), part(moments, kind)),)),
        {"x": values, "out": torch.zeros(32)},
    )
    options = {"properties": DeviceProperties(multiprocessors=2)}
    assert len(emit(case.kernel, case.declarations, **options)) == 2
    check([case], options=options, rtol=1e-4, atol=1e-3)


def test_kernels_of_equal_text_and_other_block_sizes_have_other_names() -> None:
    short, long = (columns(rows, 64, "sum", torch.randn(rows, 64)) for rows in (16, 32))
    (one,), (other,) = (emit(case.kernel, case.declarations, **WHOLE) for case in (short, long))
    assert one.source.replace(one.name, "") == other.source.replace(other.name, "")
    assert one.configs != other.configs and one.name != other.name
