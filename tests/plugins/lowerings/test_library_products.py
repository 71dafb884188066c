"""Products that stay calls of the library give eager's results, with what comes behind them in a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import turret
from turret.hooks.hookspecs import hookimpl

F8, BF16 = torch.float8_e4m3fn, torch.bfloat16


class Steps:
    """Plugin: keeps the schedules that are made."""

    def __init__(self) -> None:
        self.schedules: list[turret.ir.Schedule] = []

    @hookimpl
    def turret_event(self, event: object) -> None:
        if isinstance(getattr(event, "product", None), turret.ir.Schedule):
            self.schedules.append(event.product)


def same(function: Callable, *arguments: torch.Tensor) -> turret.ir.Schedule:
    steps = Steps()
    options = {"on_error": "raise", "cache": False, "emulate_precision_casts": True}
    found = turret.compile(function, options=options, plugins=[steps], fullgraph=True)(*arguments)
    want = function(*arguments)
    assert (found.dtype, found.stride()) == (want.dtype, want.stride())
    torch.testing.assert_close(found, want)
    return steps.schedules[-1]


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("form", ["tensors", "bias", "half", "behind"])
def test_products_of_float8(rows: int, form: str) -> None:
    x, w = torch.randn(rows, 32).to(F8), torch.randn(48, 32).to(F8)
    one, two, bias = torch.tensor(0.5), torch.tensor(2.0), torch.randn(48).to(BF16)

    def function(x: torch.Tensor, w: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        match form:
            case "bias":
                return torch._scaled_mm(x, w.t(), one, two, bias=bias, out_dtype=BF16)
            case "half":
                return torch._scaled_mm(x, w.t(), one, two, out_dtype=torch.float16, use_fast_accum=True)
            case "behind":
                return F.gelu(torch._scaled_mm(x, w.t(), one, two, out_dtype=BF16)) + bias
        return torch._scaled_mm(x, w.t(), one, two, out_dtype=torch.float32)

    made = same(function, x, w, one, two)
    assert [step.op for step in made.externs] == [torch.ops.aten._scaled_mm.default]
    assert len(made.kernels) == (form == "behind")


def test_products_of_int8() -> None:
    x, w, scale = torch.randn(8, 64, dtype=BF16), torch.randint(-128, 128, (48, 64), dtype=torch.int8), torch.rand(48)
    made = same(lambda x, w, s: F.relu(torch._weight_int8pack_mm(x, w, s)) + 1, x, w, scale.to(BF16))
    assert [step.op for step in made.externs] == [torch.ops.aten._weight_int8pack_mm.default]
    assert len(made.kernels) == 1


def test_products_of_int4() -> None:
    x, w = torch.randn(8, 64, dtype=BF16), torch.randint(0, 16, (48, 64), dtype=torch.int32)
    packed = torch._convert_weight_to_int4pack_for_cpu(w, 1)
    scales = torch.rand(64 // 32, 48, 2, dtype=BF16)
    same(lambda x, w, s: F.relu(torch._weight_int4pack_mm_for_cpu(x, w, 32, s)) + 1, x, packed, scales)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("rows", [1, 4, 33])
def test_products_with_packed_weights_of_four_bits(rows: int, dtype: torch.dtype) -> None:
    x, scales = torch.randn(rows, 64, dtype=dtype), torch.rand(2, 32, 2, dtype=dtype)
    four = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (32, 64), dtype=torch.int32), 2)

    def function(x: torch.Tensor, four: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm_for_cpu(x * 2, four, 32, scales).relu()

    made = same(function, x, four, scales)
    assert [step.op for step in made.externs] == [torch.ops.aten._weight_int4pack_mm_for_cpu.default]


@pytest.mark.parametrize("dtype", [F8, torch.float8_e5m2])
@pytest.mark.parametrize("out", [None, torch.float32, BF16])
def test_products_of_float8_whose_rows_and_columns_are_scaled(dtype: torch.dtype, out: torch.dtype | None) -> None:
    x, w = torch.randn(33, 64), torch.randn(32, 64).to(dtype)
    left, right = torch.rand(33, 1), torch.rand(1, 32)

    def function(x: torch.Tensor, w: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm((x * 3).to(dtype), w.t(), left, right, out_dtype=out).float().relu()

    made = same(function, x, w, left, right)
    assert torch.ops.aten._scaled_mm.default in [step.op for step in made.externs]
