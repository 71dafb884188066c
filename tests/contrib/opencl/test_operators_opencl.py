"""Every scalar op, for every dtype that torch has it for, gives eager's values in OpenCL, special ones included."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from tests.contrib.opencl.opencl_lab import check
from tests.plugins.codegen.cpp.kernel_lab import Case, element
from tests.plugins.codegen.cpp.operator_values import DTYPES, FLOATS, LOOSE, operands, ops_of, special_values
from turret.errors import UnsupportedError
from turret.ir import Expr, Kernel, Store, call, cast
from turret.ir.index import Var


def joined(values: Iterable[tuple[str, list[torch.Tensor], object]]) -> list[Case]:
    """One kernel for all values of a length: of each the name, the operands, and what makes the expression of them."""
    stores: dict[int, list[Store]] = {}
    tensors: dict[int, dict[str, torch.Tensor]] = {}
    for name, arguments, make in values:
        count = arguments[0].numel()
        i = Var("i", count)
        named = {f"{name} {number}": value for number, value in enumerate(arguments)}
        expr: Expr = make(*(element(key, value, i) for key, value in named.items()))
        stores.setdefault(count, []).append(Store(f"{name} out", (i.index,), expr))
        tensors.setdefault(count, {}).update({**named, f"{name} out": torch.zeros(count, dtype=expr.dtype)})
    return [Case(Kernel("ops", (Var("i", n),), (), tuple(stores[n])), tensors[n]) for n in stores]


def cases_of(ops: Iterable[str], dtype: torch.dtype) -> list[Case]:
    return joined((op, operands(op, dtype), lambda *args, op=op: call(op, *args)) for op in ops)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_gives_eagers_values(dtype: torch.dtype) -> None:
    least = 2e-38 if dtype in (torch.float32, torch.bfloat16) else 0.0
    check(cases_of([op for op in ops_of(dtype) if op not in LOOSE], dtype), threads=(1,), atol=least)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inexact_functions_are_within_some_units_in_the_last_place(dtype: torch.dtype) -> None:
    worst = max(LOOSE.values()) * torch.finfo(torch.float32 if dtype != torch.float64 else dtype).eps
    check(cases_of(LOOSE, dtype), threads=(1,), rtol=max(worst, 2 * torch.finfo(dtype).eps), atol=1e-38)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts_to_all_dtypes(source: torch.dtype) -> None:
    targets = [dtype for dtype in DTYPES if dtype != source]
    values = [special_values(source)]
    check(joined((str(t), values, lambda value, t=t: cast(value, t)) for t in targets), threads=(1,))


def test_values_of_other_dtypes_are_refused_with_the_dtype() -> None:
    with pytest.raises(UnsupportedError, match=r"OpenCL kernels do not compute with torch.complex64"):
        check(joined([("c", [torch.zeros(3, dtype=torch.complex64)], lambda value: value)]))
