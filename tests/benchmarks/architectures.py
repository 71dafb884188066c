"""Capture of the architectures of transformers by Turret and by torch._dynamo: graphs, breaks, equality, time.

    python -m tests.benchmarks.architectures [NAME ...] [--training] [--record results.jsonl]

Each architecture is a small model of random weights (``architecture_zoo.py``), and each capture runs in a forked
process of its own, after one of a small function that loads what is loaded once.  Graphs run as they are,
uncompiled.  Three calls, the second with other values and the third with other sizes, must give what eager gives;
with ``--training`` gradients too.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import random
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.architecture_zoo import ARCHITECTURES, OTHER_SIZES, SIZES, Architecture
from tests.benchmarks.bench_capture import small
from tests.benchmarks.crawled_modules import Discrepancy, same, short
from tests.benchmarks.measure import geometric_mean, table

SECONDS = 300.0
"""How long one capture may take."""


class Turret:
    """Own capture, with what it reported."""

    def __init__(self) -> None:
        from turret.hooks import plugin_manager
        from turret.hooks.hookspecs import hookimpl
        from turret.pipeline.stage_calls import create_context

        self.graphs = 0
        self.breaks: list[str] = []
        system = self

        class Observer:
            @hookimpl
            def turret_event(self, event: Any) -> None:
                if event.kind in ("graph_break", "fallback"):
                    system.breaks.append(event.message)

        manager = plugin_manager.create((Observer(),))
        options = {"on_error": "raise"}
        self.context = create_context(plugin_manager.configure(manager, None, options), manager)

    def keep(self, captured: Any) -> Any:
        self.graphs += 1
        return captured.module

    def compile(self, target: Callable) -> Callable:
        from turret.plugins.capture import turret_capture

        if isinstance(target, torch.nn.Module):
            target = target.__call__
        return turret_capture(
            context=self.context, target=target, compile_graph=self.keep, fullgraph=False, dynamic=None
        )  # fmt: skip

    def reset(self) -> None:
        self.graphs = 0
        self.breaks.clear()


class Dynamo:
    """torch._dynamo, with what it reported."""

    def __init__(self) -> None:
        from torch._dynamo.utils import counters

        self.graphs = 0
        self.counter = counters["graph_break"]

    def keep(self, module: torch.fx.GraphModule, inputs: Any) -> Callable:
        self.graphs += 1
        return module.forward

    def compile(self, target: Callable) -> Callable:
        return torch.compile(target, backend=self.keep)

    @property
    def breaks(self) -> list[str]:
        return list(self.counter.elements())

    def reset(self) -> None:
        self.graphs = 0
        self.counter.clear()


SYSTEMS: dict[str, Callable[[], Any]] = {"turret": Turret, "dynamo": Dynamo}


def observe(call: Callable, inputs: dict[str, torch.Tensor], model: torch.nn.Module, training: bool) -> list[Any]:
    """What one call gives: its output and, where asked for, the gradients of all parameters."""
    torch.manual_seed(1)
    random.seed(1)
    if not training:
        with torch.no_grad():
            return [call(**inputs)]
    output = call(**inputs)
    first = output[0]
    loss = first if first.dim() == 0 else (first * torch.linspace(-1, 1, first.shape[-1])).mean()
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [first.detach(), gradients]


def measure(name: str, system: str, training: bool) -> dict[str, Any]:
    """One architecture with one system, in this process."""
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    model.train(training)
    batches = []
    for seed, sizes in enumerate((SIZES, SIZES, OTHER_SIZES)):
        torch.manual_seed(seed)
        batches.append(architecture.inputs(model.config, sizes))
    expected = [observe(model, batch, model, training) for batch in batches]
    watched = SYSTEMS[system]()
    with torch.no_grad():
        watched.compile(small)(torch.randn(4, 4))
    watched.reset()
    compiled = watched.compile(model)
    start = time.perf_counter()
    found = [observe(compiled, batches[0], model, training)]
    seconds = time.perf_counter() - start
    answer = {"graphs": watched.graphs, "breaks": watched.breaks, "seconds": seconds}
    found.append(observe(compiled, batches[1], model, training))
    answer["recompiles"] = watched.graphs - answer["graphs"]
    found.append(observe(compiled, batches[2], model, training))
    answer["resized"] = watched.graphs - answer["graphs"] - answer["recompiles"]
    try:
        same(found, expected, "")
        answer["equal"] = "yes"
    except Discrepancy as error:
        answer["equal"] = str(error)
    return answer


def in_child(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer of a forked process, or how it ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            answer = function()
        except BaseException as error:
            answer = {"error": short(error)}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        if not select.select([pipe], [], [], SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
        text = pipe.read()
    status = os.waitpid(pid, 0)[1]
    return json.loads(text) if text else {"error": f"ended with status {status}"}


def report(rows: list[dict[str, Any]]) -> str:
    """The table, what broke graphs, and how both compare."""
    lines, notes = [], []
    for row in rows:
        answers = [row.get(system, {}) for system in SYSTEMS]
        seconds = (f"{answer['seconds']:.2f}" if "seconds" in answer else "-" for answer in answers)
        lines.append((row["name"], row["kind"], *map(_graphs, answers), *map(_equal, answers), *seconds))
        for system, answer in zip(SYSTEMS, answers, strict=True):
            notes += [f"{row['name']}, {system}: {note}" for note in _notes(answer)]
    both = [r for r in rows if all(r.get(s, {}).get("graphs") == 1 for s in SYSTEMS)]
    ratios = [r["turret"]["seconds"] / r["dynamo"]["seconds"] for r in both]
    behind = [r["name"] for r in rows if _whole(r.get("dynamo", {})) and not _whole(r.get("turret", {}))]
    header = ("", "kind", "graphs turret", "dynamo", "equal turret", "dynamo", "seconds turret", "dynamo")
    return "\n".join(
        [
            table(header, lines),
            "graphs: of the first call, +those of a call with other values, /those of one with other sizes",
            *notes,
            f"architectures: {len(rows)}; one graph and equal: "
            + ", ".join(f"{s} {sum(_whole(r.get(s, {})) for r in rows)}" for s in SYSTEMS)
            + f"; dynamo alone: {', '.join(behind) or 'none'}",
            f"turret's capture time over dynamo's, geometric mean of {len(both)}: {geometric_mean(ratios):.2f}",
        ]
    )


def _notes(answer: dict[str, Any]) -> list[str]:
    """What went wrong or broke graphs, a line each."""
    reasons = collections.Counter(" ".join(b.split("File ")[0].split())[:160] for b in answer.get("breaks", ()))
    found = [f"{count} x {reason}" for reason, count in reasons.items()]
    if "error" in answer:
        found.append(answer["error"])
    if answer.get("equal", "yes") != "yes":
        found.append(f"not equal: {answer['equal']}")
    return found


def _whole(answer: dict[str, Any]) -> bool:
    return answer.get("graphs") == 1 and not answer["breaks"] and answer["equal"] == "yes"


def _graphs(answer: dict[str, Any]) -> str:
    if "graphs" not in answer:
        return "error" if "error" in answer else "-"
    again = f"+{answer['recompiles']}" if answer["recompiles"] else ""
    return f"{answer['graphs']}{again}/{answer['resized']}"


def _equal(answer: dict[str, Any]) -> str:
    return "-" if "equal" not in answer else "yes" if answer["equal"] == "yes" else "NO"


def known(architecture: Architecture) -> bool:
    """Whether this version of transformers has the model."""
    import transformers

    return hasattr(transformers, architecture.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures (all)")
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--training", action="store_true", help="train: gradients are compared as well")
    parser.add_argument("--record", type=Path, help="one JSON line each; those found there are not run again")
    options = parser.parse_args()
    import torch._dynamo
    import transformers

    import turret.plugins.capture  # noqa: F401

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if options.record and options.record.exists():
        rows = [json.loads(line) for line in options.record.read_text().splitlines()]
    done = {row["name"] for row in rows}
    for name in options.names or [n for n, a in ARCHITECTURES.items() if known(a)]:
        if name in done:
            continue
        row: dict[str, Any] = {"name": name, "kind": ARCHITECTURES[name].kind}
        for system in options.systems:
            row[system] = in_child(lambda name=name, system=system: measure(name, system, options.training))
        rows.append(row)
        if options.record:
            with options.record.open("a") as record:
                record.write(json.dumps(row) + "\n")
    print(report(rows))


if __name__ == "__main__":
    main()
