"""Values of every scalar op's operands, special ones included, and which ops eager has for a dtype."""

from __future__ import annotations

import itertools
import math

import torch

from turret.ir import OPS

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)

# Computed by formulas of several roundings in eager too; the last places may differ.
LOOSE = {"lgamma": 64, "tan": 16, "erfc": 64, "pow": 32, "sinh": 16, "cosh": 16, "acosh": 32, "atanh": 16}


def special_values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.3, -7.3, 20.0, -20.0, 1e-3, -1e-3, 100.25]
        values += [math.inf, -math.inf, math.nan, info.tiny, -info.tiny, info.smallest_normal / 4, info.max, info.min]
        values += [89.0, -104.0, info.eps, 1 - info.eps, 1 + info.eps, math.pi / 2]
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    return torch.tensor(
        [
            v
            for v in (0, 1, 2, 3, 5, 7, 31, 64, 100, -1, -2, -7, -100, info.min, info.max, info.max - 1)
            if info.min <= v <= info.max
        ],
        dtype=dtype,
    )


def torch_has(op: str, dtype: torch.dtype) -> bool:
    """Whether the table allows arguments of a dtype, and torch computes with them by the table's dtype rule."""
    info = OPS[op]
    dtypes = [torch.bool if info.conditional and number == 0 else dtype for number in range(info.arity)]
    try:
        result = info.reference(*(torch.ones(2, dtype=argument) for argument in dtypes))
    except (RuntimeError, NotImplementedError):
        return False
    return info.takes(dtype) and result.dtype == info.dtype(dtypes)


def supported(op: str, dtype: torch.dtype) -> bool:
    """The same of ops that have arguments of one dtype; half types have no ``nextafter`` in kernels."""
    return not OPS[op].conditional and (op != "nextafter" or dtype not in FLOATS[2:]) and torch_has(op, dtype)


def operands(op: str, dtype: torch.dtype) -> list[torch.Tensor]:
    values = special_values(dtype)
    if OPS[op].arity == 1:
        return [values]
    pairs = list(itertools.product(range(len(values)), repeat=2))
    left, right = (values[[p[k] for p in pairs]] for k in (0, 1))
    if OPS[op].checks_zero and dtype not in FLOATS:
        # Division of the least integer by -1 traps in eager; by zero raises (tested apart).
        keep = right != 0
        if dtype != torch.uint8:
            keep &= ~((right == -1) & (left == torch.iinfo(dtype).min))
        left, right = left[keep], right[keep]
    if op in ("mod", "fmod") and dtype in FLOATS:
        # Eager's vector code gives NaN where the quotient overflows; its scalar code, and ours, the remainder.
        keep = ~((left / right).isinf() & left.isfinite() & (right != 0))
        left, right = left[keep], right[keep]
    if op == "pow" and dtype in INTEGERS:
        keep = right >= 0
        left, right = left[keep], right[keep]
    return [left, right]


def ops_of(dtype: torch.dtype) -> list[str]:
    return [op for op in OPS if supported(op, dtype)]
