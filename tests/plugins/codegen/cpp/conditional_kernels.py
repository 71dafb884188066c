"""Kernels whose reductions and scans are wanted in some rows or elements alone; elsewhere their indices are wild."""

from __future__ import annotations

import torch

from tests.plugins.codegen.cpp.kernel_lab import Case
from turret.ir import (
    Expr,
    Index,
    Kernel,
    Store,
    Var,
    call,
    check_index,
    constant,
    index_value,
    load,
    part,
    reduce,
    scan,
)

F32, I64 = torch.float32, torch.int64
KINDS = ("sum", "max", "argmax", "mean", "scan", "softmax", "nested")


def conditional(kind: str, rows: int, columns: int, by_element: bool) -> Case:
    """``masked(keep, <kind> of table[at], -1)`` of ``rows`` rows, where ``at`` is no row of the table in every third.

    ``by_element``: ``keep`` differs along the row, and holds somewhere in each row with a good index.
    """
    generator = torch.Generator().manual_seed(columns)
    i, r = Var("i0", rows), Var("r0", columns)
    good = torch.arange(rows) % 3 != 1
    keep = good
    if by_element:
        keep = good[:, None] & (torch.rand(rows, columns, generator=generator) < 0.3)
        keep[:, columns // 2] |= good
    tensors = {
        "table": torch.randn(7, columns, generator=generator),
        "at": torch.where(good, torch.arange(rows) % 7, 10**6),
        "keep": keep,
    }
    at = check_index(load("at", (i,), I64), 7)
    value = load("table", (Index.of_value(at), r), F32)
    wanted = load("keep", (i, r) if by_element else (i,), torch.bool)
    result = _result(kind, value, r)
    loops = (i, r) if by_element or r in result.variables else (i,)
    tensors["out"] = torch.zeros([v.extent for v in loops], dtype=result.dtype)
    store = Store("out", tuple(v.index for v in loops), call("masked", wanted, result, constant(-1, result.dtype)))
    return Case(Kernel(f"conditional_{kind}", (i,), (r,), (store,)), tensors)


def _result(kind: str, value: Expr, r: Var) -> Expr:
    best = reduce("max", (r,), value)
    match kind:
        case "argmax":
            return reduce(kind, (r,), value, index_value(r))
        case "mean":
            return part(reduce("welford", (r,), value), "mean")
        case "scan":
            return scan("sum", r, value)
        case "softmax":
            power = call("exp", call("sub", value, best))
            return call("div", power, reduce("sum", (r,), power))
        case "nested":  # the inner condition can be asked where the outer one holds alone
            positive = call("gt", value, constant(0.0, F32))
            return call("masked", positive, call("sub", best, value), constant(0.0, F32))
    return reduce(kind, (r,), value)


def scanned_slice(table, at, y):
    """A scan along the dimension that it is cut along."""
    return torch.slice_scatter(y, torch.cumsum(table[at], 1)[:, 3:-3], 1, 3, -3)


def scanned_rows(table, at, y):
    return torch.slice_scatter(y, torch.cumsum(table[at], 0)[1:], 0, 1)


def softmax_slice(table, at, y):
    return torch.slice_scatter(y, torch.softmax(table[at], 1)[:, 3:], 1, 3)


def centred_slice(table, at, y):
    best = table[at].amax(1, keepdim=True)
    return torch.slice_scatter(y, (table[at] - best)[:, 3:], 1, 3), best


def filled_slice(table, at, y):
    total = table[at].sum(1, keepdim=True)
    filled = torch.slice_scatter(total.expand_as(y).contiguous(), y[:, 1:], 1, 1)
    return filled, (total + torch.nn.functional.pad(y + total, (1, -1))).sum(1)


PROGRAMS = (scanned_slice, scanned_rows, softmax_slice, centred_slice, filled_slice)
"""Programs of gathered rows, of which a slice is written into something else: their kernels have such conditions."""


def arguments(columns: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(columns)
    table, y = (torch.randn(n, columns, generator=generator) for n in (7, 5))
    return table, torch.tensor([3, 0, 6, 3, 1]), y
