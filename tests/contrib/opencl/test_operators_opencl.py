"""Every scalar op, for every dtype that torch has it for, gives eager's values in OpenCL, special ones included."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_lab import element, pointwise
from test_operators import DTYPES, FLOATS, LOOSE, case_of, ops_of, special_values

pytest.importorskip("pyopencl", reason="pyopencl and PoCL are there for Linux on x86-64 alone")

from opencl_lab import check

from turret.ir import cast
from turret.ir.index import Var


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_gives_eagers_values(dtype: torch.dtype) -> None:
    least = 2e-38 if dtype in (torch.float32, torch.bfloat16) else 0.0
    check([case_of(op, dtype) for op in ops_of(dtype) if op not in LOOSE], threads=(1,), atol=least)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inexact_functions_are_within_some_units_in_the_last_place(dtype: torch.dtype) -> None:
    worst = max(LOOSE.values()) * torch.finfo(torch.float32 if dtype != torch.float64 else dtype).eps
    rtol = max(worst, 2 * torch.finfo(dtype).eps)
    check([case_of(op, dtype) for op in LOOSE], threads=(1,), rtol=rtol, atol=1e-38)


def test_casts_between_all_dtypes() -> None:
    cases = []
    for source, target in itertools.product(DTYPES, DTYPES):
        values = special_values(source)
        i = Var("i", values.numel())
        if source != target:
            cases.append(pointwise(cast(element("x", values, i), target), (i,), {"x": values}, f"{source} to {target}"))
    check(cases, threads=(1,))
