"""Host time of library calls without recorded graphs: products of small matrices, each of which follows another.

    python -m tests.benchmarks.library_calls [--device cuda]

Beside the whole stands what the library takes when it is called alone, and what is left of a plan whose calls do
nothing: the executor's own part.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import turret
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.plan import Plan
from turret.plan.executor import LoadedPlan, load

_ROUNDS = 20


class _Plans:
    """Keeps the plans that are made."""

    def __init__(self) -> None:
        self.found: list[Plan] = []

    @hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind == "product" and isinstance(event.product, Plan):
            self.found.append(event.product)


def chain(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    for weight in weights:
        x = x @ weight
    return x


def microseconds(call: Callable[[], Any], device: torch.device, calls: int = 50) -> float:
    """Of one call on the host, the least of some rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    return best


def measured(device: torch.device, count: int, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Microseconds of each of ``count`` products."""
    x, *weights = (torch.randn(4, 4, device=device, dtype=dtype) for _ in range(count + 1))
    plans = _Plans()
    compiled = turret.compile(chain, plugins=[plans], options={"on_error": "raise", "cache": False})
    with torch.no_grad():
        compiled(x, weights)
        (plan,) = plans.found
        function = load(plan)
        out = torch.empty_like(x)
        return {
            "the whole": microseconds(lambda: compiled(x, weights), device) / count,
            "the library alone": microseconds(lambda: torch.mm(x, weights[0], out=out), device),
            "the executor alone": microseconds(_without_calls(function, [x, *weights]), device) / count,
        }


def _without_calls(function: LoadedPlan, given: Sequence[Tensor]) -> Callable[[], Any]:
    """A plan's function whose library calls give back what they are handed."""
    names: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]
    for name in [n for n in names if n.startswith("op") and n[2:].isdigit()]:
        names[name] = lambda first, *further, out=None: first if out is None else out
    return lambda: function(list(given))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    torch.set_num_threads(1)
    for count in (10, 40):
        figures = ", ".join(f"{name} {value:.2f}" for name, value in measured(device, count).items())
        print(f"{count} products, us each: {figures}")


if __name__ == "__main__":
    main()
