"""Dispatch: what a call of compiled code costs before and around its graph.

    python -m tests.benchmarks.bench_dispatch [--only bert]

The graphs run as captured, operation by operation, in every system, so that the difference between a call and
eager is the dispatch: guards, frame hook, entry.  Least and mean time of many calls, in microseconds.  Each system runs
in a process of its own.  ``check`` is Turret's guards alone; ``unguarded`` drops all of them, ``audited`` checks what
was dropped on one call in a hundred, which the mean shows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

SYSTEMS = ("eager", "dynamo", "turret", "turret, guards in Python", "turret, unguarded", "turret, audited")


def small(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x + y
    z = z * 2
    return z.relu()


def nested() -> tuple[Callable, tuple]:
    """Small modules in modules: many guards, little work."""
    from tests.benchmarks.models import NestedModule

    return NestedModule().eval(), (torch.randn(1, 2),)


def bert() -> tuple[Callable, tuple]:
    """A BERT of twelve layers and tiny sizes, and its input."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64, num_hidden_layers=12, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )  # fmt: skip
    return BertModel(config).eval(), (torch.randint(0, 100, (1, 8)),)


PROGRAMS: dict[str, Callable[[], tuple[Callable, tuple]]] = {
    "small": lambda: (small, (torch.ones(4), torch.ones(4))),
    "nested": nested,
    "bert": bert,
}


def times(call: Callable[[], Any], seconds: float = 3.0) -> tuple[float, float]:
    """Least and mean time of a call, in microseconds."""
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found) * 1e6, sum(found) / len(found) * 1e6


def compiled_by(system: str, program: Callable) -> Callable:
    """The program compiled by a system, its graphs run operation by operation."""
    if system == "eager":
        return program
    if system == "dynamo":
        return torch.compile(program, backend="eager")
    from turret.api.module import wrap_module
    from turret.frames import guard_tree
    from turret.frames.filtering.guard_filter import taken_from
    from turret.hooks import plugin_manager
    from turret.pipeline.stage_calls import create_context
    from turret.plugins.capture import turret_capture

    if system.endswith("Python"):
        guard_tree.compile_natively = lambda guards: None  # type: ignore[assignment,return-value]
    else:
        guard_tree.load()
    options: dict[str, Any] = {"on_error": "raise"}
    if system.endswith(("unguarded", "audited")):
        options["guard_filter_fn"] = lambda guards: [False] * len(guards)
    if system.endswith("audited"):
        options["guard_audit"] = 0.01
    taken, filters = taken_from(options)
    manager = plugin_manager.create(filters)
    context = create_context(plugin_manager.configure(manager, None, taken), manager)
    module = isinstance(program, torch.nn.Module)
    call = turret_capture(
        context=context, target=program.__call__ if module else program,
        compile_graph=lambda captured: captured.module, fullgraph=False, dynamic=None,
    )  # fmt: skip
    return wrap_module(program, call, lambda m: m) if isinstance(program, torch.nn.Module) else call


def check_time(compiled: Any, inputs: tuple) -> float | None:
    """Least time of the check of a call's guards; None where Turret did not compile it as one unit."""
    settings = getattr(getattr(compiled, "_turret_call", compiled), "turret_settings", None)
    if settings is None or len(settings.root.units) != 1:
        return None
    (unit,), seen = settings.root.units, []
    check = unit.check
    unit.check = lambda *call: (seen.append(call), check(*call))[1]
    compiled(*inputs)
    unit.check = check
    return times(lambda: check(*seen[0]), 1.0)[0]


def measure(name: str, system: str) -> dict[str, float | None]:
    """Figures of one program under one system."""
    torch.manual_seed(0)
    program, inputs = PROGRAMS[name]()
    with torch.no_grad():
        compiled = compiled_by(system, program)
        start = time.perf_counter()
        compiled(*inputs)
        first = time.perf_counter() - start
        call, mean = times(lambda: compiled(*inputs))
        return {"call": call, "mean": mean, "check": check_time(compiled, inputs), "first s": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    print(f"{'program':8} {'system':26} {'call us':>9} {'mean us':>9} {'check us':>9} {'first s':>8}")
    for name in [options.only] if options.only else PROGRAMS:
        for system in SYSTEMS:
            command = [sys.executable, "-m", __spec__.name, "--one", name, system]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if done.returncode:
                raise RuntimeError(done.stderr)
            figures = json.loads(done.stdout.splitlines()[-1])
            check = "" if figures["check"] is None else f"{figures['check']:.2f}"
            columns = f"{figures['call']:9.1f} {figures['mean']:9.1f} {check:>9} {figures['first s']:8.2f}"
            print(f"{name:8} {system:26} {columns}", flush=True)


if __name__ == "__main__":
    main()
