"""Library calls launched by themselves beside calls, in the default mode, and what a call and a launch cost the host.

    python -m tests.benchmarks.direct_calls [--torch] [--rounds 3]

Times are microseconds a step, with the device's work, medians of rounds in which the systems take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import turret
from tests.gpu.direct_checks import Block, mlp, rand

CALLS, WARM = 30, 8


def systems(model: nn.Module, with_torch: bool) -> dict[str, Any]:
    """Ways to run a model."""
    found = {
        "eager": model,
        "called": turret.compile(model, options={"direct_library_calls": False}),
        "launched": turret.compile(model),
    }
    return {**found, "torch.compile": torch.compile(model)} if with_torch else found


def microseconds(step: Callable[[], Any]) -> float:
    """Of one step."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS * 1e6


def inference(run: Callable, x: Tensor) -> Callable[[], Any]:
    def step() -> Any:
        with torch.no_grad():
            return run(x)

    return step


def training(run: Callable, x: Tensor, model: nn.Module) -> Callable[[], Any]:
    def step() -> None:
        model.zero_grad()
        run(x).float().square().mean().backward()

    return step


def report(name: str, steps: dict[str, Callable[[], Any]], rounds: int) -> None:
    """A line of medians."""
    times: dict[str, list[float]] = {system: [] for system in steps}
    for _ in range(rounds):
        for system, step in steps.items():
            times[system].append(microseconds(step))
    print(name, ", ".join(f"{system} {statistics.median(found):.0f}" for system, found in times.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true", help="torch.compile, too")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    blocks = nn.Sequential(*[Block(768, 12) for _ in range(6)]).to("cuda", torch.bfloat16)
    cases = {
        "12 layers of 512, 64 rows": (mlp(512, 12), rand(64, 512)),
        "6 blocks of 768, 1 x 64": (blocks, rand(1, 64, 768)),
        "6 blocks of 768, 8 x 512": (blocks, rand(8, 512, 768)),
    }
    for name, (model, x) in cases.items():
        turret.reset()
        ways = systems(model, asked.torch)
        report(f"{name}, inference:", {system: inference(run, x) for system, run in ways.items()}, asked.rounds)
        report(f"{name}, training:", {system: training(run, x, model) for system, run in ways.items()}, asked.rounds)


if __name__ == "__main__":
    main()
