"""Sums of exponentials relative to a maximum, which one pass over a row can compute along with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import torch

from turret.ir.expr import Expr, walk


def softmax_sums(nodes: Iterable[Expr], is_row: Callable[[Expr], bool]) -> dict[Expr, Expr]:
    """Sums of ``exp(v - max v)`` among ``nodes`` that one pass can compute along with the maximum, by sum."""
    sums: dict[Expr, Expr] = {}
    for node in nodes:
        body = node.args[0]
        if node.payload.kind != "sum" or body.op != "exp" or body.args[0].op != "sub" or body.dtype != torch.float32:
            continue
        value, best = body.args[0].args
        is_maximum = best.op == "reduce" and best.payload == attrs.evolve(node.payload, kind="max")
        if not is_maximum or best.args[0] is not value or best in sums.values():
            continue
        if not any(map(is_row, walk(value))):
            sums[node] = best
    return sums
