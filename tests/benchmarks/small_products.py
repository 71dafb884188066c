"""Small matrix products on the CPU: loops beside the library's call, size by size, several of each in one graph.

    python -m tests.benchmarks.small_products --threads 1 --dtypes float32,bfloat16

What ``turret.plugins.devices.cpu`` says of products is fitted to these; each product is stored in memory of its own,
the allocation of which is part of both times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import turret
from tests.benchmarks import measure
from turret.hooks.hookspecs import hookimpl

SIZES = (
    *((1, 2, 2), (1, 8, 8), (1, 32, 32), (1, 64, 64), (1, 128, 128), (4, 4, 4), (4, 16, 17), (8, 8, 8), (8, 8, 64)),
    *((2, 32, 32), (16, 16, 16), (64, 2, 2), (4, 24, 40), (16, 16, 24), (4, 64, 64), (32, 32, 32), (64, 16, 64)),
)
"""Rows, columns and depth."""
PRODUCTS = 16
"""Products of one graph."""


class Forced:
    """Plugin: every product in one form."""

    def __init__(self, form: str) -> None:
        self.form = form

    @hookimpl
    def turret_choice_cost(self, candidate: Any) -> float:
        return float(candidate.form != self.form)


def least_microseconds(run: Callable[[], object], calls: int = 300, repeats: int = 5) -> float:
    """The least time of a call, over several rounds of calls."""
    rounds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    return min(rounds)


def measured(size: tuple[int, int, int], transposed: bool, dtype: torch.dtype) -> dict[str, float]:
    """Microseconds of one product in each form."""
    rows, columns, depth = size
    x = torch.randn(rows, depth, dtype=dtype)
    shape = (columns, depth) if transposed else (depth, columns)
    weights = [torch.randn(shape, dtype=dtype) for _ in range(PRODUCTS)]

    def products(x: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x @ (w.t() if transposed else w) for w in weights]

    found = {}
    for form in ("library", "loops"):
        options = {"cache": False, "on_error": "raise"}
        run = turret.compile(products, plugins=[Forced(form)], options=options, dynamic=False)
        run(x, weights)
        found[form] = least_microseconds(lambda run=run: run(x, weights)) / PRODUCTS
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", default="float32")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    lines = []
    for name in options.dtypes.split(","):
        for transposed in (True, False):
            for size in SIZES:
                found = measured(size, transposed, getattr(torch, name))
                layout = "transposed" if transposed else "plain"
                times = [f"{found[form]:.2f}" for form in ("library", "loops")]
                lines.append([name, layout, "x".join(map(str, size)), str(size[0] * size[1] * size[2]), *times])
    header = ["dtype", "right operand", "size", "multiply-adds", "library us", "loops us"]
    print(measure.table(header, lines))


if __name__ == "__main__":
    main(sys.argv[1:])
