"""Products of experts and of weights of few bits on a GPU: what generated kernels take beside calls and torch.compile.

    python -m tests.benchmarks.expert_products --json out.json
    python -m tests.benchmarks.expert_products --tiny --device cpu      # that it runs

Each time is of one call in a CUDA graph of calls on several sets of operands, so that none is still in the cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

import turret
from tests.benchmarks.products import FAR_APART, graph_microseconds
from tests.gpu.products import Forced

BF16 = torch.bfloat16
Make = Callable[[str], tuple[Tensor, ...]]


@attrs.frozen
class Case:
    """``function`` on what ``make(device)`` gives; ``others`` are other ways to write it, ``forms`` those of Turret's
    product.  ``bytes`` that it has to move, and ``flops``."""

    name: str
    function: Callable
    make: Make
    forms: tuple[str, ...]
    bytes: int
    flops: int
    others: dict[str, Callable] = attrs.field(factory=dict)


def _randn(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=BF16, device=device) * shape[-1] ** -0.5


def grouped(name: str, rows: int, columns: int, depth: int, groups: int, skew: bool = False) -> Case:
    """Rows in equal groups, or in groups of which each is half as large as the one before, and an activation."""

    def make(device: str) -> tuple[Tensor, ...]:
        weights = [2.0**-k if skew else 1.0 for k in range(groups)]
        at = torch.tensor(weights).cumsum(0) / sum(weights) * rows
        w = _randn(device, groups, columns, depth).mT
        return _randn(device, rows, depth), w, at.round().int().to(device)

    def function(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        return F.silu(torch._grouped_mm(x, w, offs=ends))

    moved = 2 * (rows * depth + min(groups, rows) * depth * columns + rows * columns)
    return Case(f"grouped {name}", function, make, ("tiles",), moved, 2 * rows * columns * depth)


def quantised(name: str, rows: int, columns: int, depth: int) -> Case:
    """Weights of int8 with a scale for each column."""

    def make(device: str) -> tuple[Tensor, ...]:
        q = torch.randint(-128, 128, (columns, depth), dtype=torch.int8, device=device)
        return _randn(device, rows, depth), q, _randn(device, columns).abs()

    def function(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, q.to(x.dtype)) * scale

    moved = 2 * rows * (columns + depth) + columns * depth
    others = {"int8pack": lambda x, q, scale: torch._weight_int8pack_mm(x, q, scale)}
    form = "rows" if rows == 1 else "tiles"
    return Case(f"int8 {name} {rows}", function, make, (form,), moved, 2 * rows * columns * depth, others)


def plain(name: str, rows: int, columns: int, depth: int) -> Case:
    """The same product with weights in bfloat16, for comparison."""

    def make(device: str) -> tuple[Tensor, ...]:
        return _randn(device, rows, depth), _randn(device, columns, depth)

    moved = 2 * (rows * (columns + depth) + columns * depth)
    form = "rows" if rows == 1 else "tiles"
    return Case(f"bf16 {name} {rows}", lambda x, w: F.linear(x, w), make, (form,), moved, 2 * rows * columns * depth)


def picked(name: str, rows: int, columns: int, depth: int, experts: int) -> Case:
    """A matrix for each row, picked from several."""

    def make(device: str) -> tuple[Tensor, ...]:
        ids = torch.arange(rows, device=device) % experts
        return _randn(device, rows, depth), _randn(device, experts, columns, depth), ids

    def function(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
        return F.silu(torch.bmm(w[ids], x.unsqueeze(-1)).squeeze(-1))

    moved = 2 * (rows * (columns + depth) + min(rows, experts) * columns * depth)
    return Case(f"picked {name} {rows}", function, make, ("rows",), moved, 2 * rows * columns * depth)


def cases(tiny: bool) -> list[Case]:
    """All cases, the more telling ones first."""
    if tiny:
        return [grouped("tiny", 32, 16, 24, 4), quantised("tiny", 4, 16, 32), picked("tiny", 2, 16, 32, 3)]
    decode = (("qkv", 6144, 4096), ("down", 4096, 14336))
    found = [
        grouped("mixtral up", 8192, 14336, 4096, 8),
        grouped("mixtral down", 8192, 4096, 14336, 8),
        grouped("qwen3 up", 16384, 768, 2048, 128),
        grouped("mixtral short", 256, 14336, 4096, 8),
        grouped("qwen3 short", 512, 768, 2048, 128),
        grouped("mixtral skew", 8192, 14336, 4096, 8, skew=True),
    ]
    found += [picked("mixtral", rows, 14336, 4096, 8) for rows in (2, 8, 16)]
    for rows in (1, 8, 32, 64):
        found += [
            case for size in decode for case in (quantised(size[0], rows, *size[1:]), plain(size[0], rows, *size[1:]))
        ]
    return found


def systems(case: Case, device: str, peer: bool) -> dict[str, Callable[[], Callable]]:
    """Ways to run a case, each made when asked for."""

    def ours(*forms: str, **options: Any) -> Callable:
        plugins = [Forced(*forms)] if forms else []
        return turret.compile(case.function, plugins=plugins, options={"on_error": "raise", **options})

    found: dict[str, Callable[[], Callable]] = {"eager": lambda: case.function}
    found |= {name: lambda made=made: made for name, made in case.others.items()}
    found |= {"turret": ours, case.forms[0]: lambda: ours(*case.forms)}
    if device != "cpu":
        found["tuned"] = lambda: ours(*case.forms, max_autotune=True)
    if peer:
        found["torch.compile"] = lambda: torch.compile(case.function, dynamic=False)
    return found


def timed(function: Callable, sets: Sequence[tuple[Tensor, ...]], device: str) -> float:
    """Microseconds of a call."""
    for given in sets[:1]:
        function(*given)
        function(*given)
    if device == "cpu":
        start = time.perf_counter()
        for given in sets:
            function(*given)
        return (time.perf_counter() - start) * 1e6 / len(sets)
    return graph_microseconds(lambda: [function(*given) for given in sets], len(sets))


def measured(case: Case, device: str, peer: bool) -> dict[str, Any]:
    """Times of all systems, and how far each is from eager's result in float64's terms."""
    count = max(2, min(12, FAR_APART // max(case.bytes, 1)))
    sets = [case.make(device) for _ in range(count)]
    want = case.function(*sets[0]).double()
    row: dict[str, Any] = {"case": case.name, "bytes": case.bytes, "flops": case.flops}
    for name, make in systems(case, device, peer).items():
        try:
            function = make()
            got = function(*sets[0]).double()
            row[f"{name} error"] = ((got - want).norm() / want.norm()).item()
            row[name] = timed(function, sets, device)
        except Exception as failure:
            row[name] = None
            print(f"  {case.name}: {name}: {type(failure).__name__}: {str(failure)[:160]}", flush=True)
    return row


def report(row: dict[str, Any]) -> str:
    """A line of the table."""
    texts = []
    for name, took in row.items():
        if name in ("case", "bytes", "flops") or name.endswith(" error"):
            continue
        texts.append(f"{name} {'-' if took is None else f'{took:.1f}'}")
    best = min((v for k, v in row.items() if k in ("rows", "tiles", "tuned") and v), default=float("nan"))
    rates = f"{row['bytes'] / best / 1e6:.2f} TB/s {row['flops'] / best / 1e6:.0f} TFLOP/s"
    worst = max((v for k, v in row.items() if k.endswith(" error")), default=0.0)
    return f"{row['case']:>20}  {'  '.join(texts)}  ({rates}, error {worst:.1e})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--peer", type=float, default=60, help="seconds in which torch.compile is measured, too")
    parser.add_argument("--budget", type=float, default=180, help="seconds after which no further case starts")
    parser.add_argument("--json", default="")
    options = parser.parse_args(arguments)
    start, rows = time.monotonic(), []
    for case in cases(options.tiny):
        spent = time.monotonic() - start
        if options.only not in case.name or spent > options.budget:
            continue
        rows.append(measured(case, options.device, spent < options.peer))
        print(report(rows[-1]), flush=True)
        turret.reset()
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file)


if __name__ == "__main__":
    main(sys.argv[1:])
