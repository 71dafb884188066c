"""Reductions over both axes of one tensor: joined in one pass where they can be, and equal to eager either way."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.codegen.cpp.kernel_lab import Case, declare
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.codegen.triton.triton_lab import compile_offline, run
from turret.ir import Kernel, Store, call, load, reduce
from turret.ir.index import Var
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel, emit
from turret.plugins.codegen.triton.tiles import row_column

SMALL = DeviceProperties(multiprocessors=4)


@pytest.fixture(autouse=True)
def join_small_kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_column, "LEAST_ELEMENTS", 100)
    yield
    torch.compiler.reset()


def gradients(program: Callable, args: list[torch.Tensor]) -> dict[str, TritonKernel]:
    """Checks a program's gradients; the kernels that were emitted."""
    codegen = InterpretedCodegen(properties=SMALL)
    function = turret.compile(program, plugins=[codegen], options={"on_error": "raise"}, dynamic=False)
    # Eager's own sums of bfloat16 are rounded often; the exact gradients are the measure.
    exact = [a.detach().double().requires_grad_() for a in args]
    got, want = function(*args), program(*exact)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(got.dtype)
    for mine, theirs in zip(
        torch.autograd.grad(got, args, weight), torch.autograd.grad(want, exact, weight.double()), strict=True
    ):
        apart = (mine.double() - theirs).norm() / theirs.norm()
        assert apart < (1e-2 if got.dtype == torch.bfloat16 else 1e-5)
    return codegen.kernels


def joined(kernels: dict[str, TritonKernel]) -> list[TritonKernel]:
    return [kernel for kernel in kernels.values() if "program = tl.program_id(0)" in kernel.source]


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4, 32, 64), (126, 50), (8, 9, 10, 33)])
def test_a_norm_s_backward_reads_its_tensors_once(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in (shape, shape[-1:], shape[-1:])]
    found = joined(gradients(layer_norm, args))
    assert found
    for kernel in found:
        assert compile_offline(kernel).asm["cubin"]


@st.composite
def regroupings(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Rows as a grid of several extents, and an order of its dimensions; how many elements are moved along each."""
    extents = draw(st.lists(st.sampled_from([2, 3, 4, 7]), min_size=2, max_size=4))
    return extents, draw(st.permutations(range(len(extents)))), [draw(st.integers(0, n - 1)) for n in extents]


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(regroupings(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_norm_s_backward_sums_rows_that_what_follows_reads_in_another_order(
    drawn: tuple[list[int], list[int], list[int]], dtype: torch.dtype
) -> None:
    extents, order, moved = drawn

    def windows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rows = layer_norm(x, w, b).view(8, *extents, x.shape[-1])
        rows = rows.roll(moved, list(range(1, len(extents) + 1)))
        return rows.permute(0, *(d + 1 for d in order), len(extents) + 1).reshape(-1, x.shape[-1]).sin()

    generator = torch.Generator().manual_seed(0)
    shapes = ((8, math.prod(extents), 24), (24,), (24,))
    gradients(windows, [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes])


def test_rows_that_do_not_divide_into_shares_stay_apart() -> None:
    args = [torch.randn(s).requires_grad_() for s in ((127, 50), (50,), (50,))]
    assert not joined(gradients(layer_norm, args))


@pytest.mark.parametrize("rows", [1, 7, 32])
def test_a_sum_across_rows_of_each_share(rows: int) -> None:
    share, row, column = Var("share", 6), Var("row", rows), Var("j", 100)
    x = torch.randn(6 * rows, 100)
    at = share.index * rows + row
    value = load("x", (at, column), torch.float32)
    total = reduce("sum", (column,), value)
    stores = (
        Store("out", (at, column.index), call("sub", value, total)),
        Store("sums", (share.index, column.index), call("mul", value, total), "sum"),
    )
    tensors = {"x": x, "out": torch.zeros_like(x), "sums": torch.zeros(6, 100)}
    kernel = Kernel("k", (share, row), (column,), stores)
    (emitted,) = emit(kernel, {name: declare(name, t) for name, t in tensors.items()})
    assert rows == 1 or emitted.grid == ("6",)
    wanted = x * x.sum(1, keepdim=True)
    run(Case(kernel, tensors))
    torch.testing.assert_close(tensors["sums"], wanted.view(6, rows, 100).sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tensors["out"], x - x.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)
