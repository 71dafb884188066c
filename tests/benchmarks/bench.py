"""Run time and error of models under several systems, in one process and in turns.

    python -m tests.benchmarks.bench --systems eager,inductor,turret --models bert,gpt2 --json bench.json

For each model, inference and training: the relative error (norm) of outputs, gradients and buffers against
eager, the median seconds per call, each system's time over the baseline's, and geometric means at the end.
A system that fails on a model is reported with its error and the others go on.  Where others use the machine,
``--threads 1 --clock process`` has the seconds that the process had a processor, which they hardly change.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

from tests.benchmarks import measure, models, systems


@attrs.define
class Result:
    """One system on one model; seconds are medians per call, ``nan`` where the system failed."""

    model: str
    kind: str
    system: str
    seconds: float = float("nan")
    output_error: float = float("nan")
    gradient_error: float = float("nan")
    buffer_error: float = float("nan")
    failure: str = ""


@attrs.frozen(eq=False)
class Subject:
    """A model compiled by one system: ``step`` is what is timed, ``observe`` what is compared.

    ``parameters`` are those of its own copy of the module, in order; writing to them in place changes what it computes.
    """

    step: Callable[[], object]
    observe: Callable[[], dict[str, list]]
    parameters: list[torch.nn.Parameter]


def subject(workload: models.Workload, system: str, training: bool) -> Subject:
    """Copy the module, so that systems do not share state, and compile the copy."""
    module = copy.deepcopy(workload.module)
    compiled = systems.compiler_of(system)(module)
    parameters, buffers = list(module.parameters()), list(module.buffers())

    def inference() -> Any:
        with torch.no_grad():
            return compiled(*workload.inputs)

    def train() -> Any:
        for parameter in parameters:
            parameter.grad = None
        output = compiled(*workload.training_inputs)
        workload.loss(output).backward()
        return output

    step = train if training else inference

    def observe() -> dict[str, list]:
        output = measure.tensors_of(step())
        gradients = [p.grad for p in parameters] if training else []
        return {"output": output, "gradient": gradients, "buffer": [b.clone() for b in buffers]}

    return Subject(step, observe, parameters)


_CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


def compare(
    name: str,
    names: list[str],
    training: bool,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Result]:
    """All systems on one model; the first call of each is compared with the first of eager."""
    workload = models.build(name, training=training)
    kind = "training" if training else "inference"
    expected = subject(workload, "eager", training).observe()
    results = {system: Result(name, kind, system) for system in names}
    subjects: dict[str, Subject] = {}
    for system in names:
        result = results[system]
        try:
            subjects[system] = made = subject(workload, system, training)
            got = made.observe()
            result.output_error = measure.relative_error(got["output"], expected["output"])
            result.buffer_error = measure.relative_error(got["buffer"], expected["buffer"])
            if training:
                result.gradient_error = measure.relative_error(got["gradient"], expected["gradient"])
            for _ in range(2):
                made.step()
        except Exception as error:
            subjects.pop(system, None)
            result.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            traceback.print_exc(limit=4)
    steps = {system: made.step for system, made in subjects.items()}
    times = measure.interleaved(steps, seconds=seconds, clock=clock)
    for system, samples in times.items():
        results[system].seconds = statistics.median(samples)
    return list(results.values())


def report(results: list[Result], names: list[str], baseline: str) -> str:
    """A line a model and kind, then geometric means of baseline time over each system's (above 1 is faster)."""
    columns = {(r.model, r.kind, r.system): r for r in results}
    keys = list(dict.fromkeys((r.model, r.kind) for r in results))
    header = ["model", *(f"{s} ms" for s in names), *(f"{s} x" for s in names if s != baseline)]
    header += [f"{s} err out/grad" for s in names if s != "eager"]
    rows = []
    for model, kind in keys:
        line = [columns[model, kind, s] for s in names]
        base = columns[model, kind, baseline].seconds
        row: list[object] = [f"{model} {kind}", *(f"{r.seconds * 1e3:.2f}" for r in line)]
        row += [f"{base / r.seconds:.2f}" for r in line if r.system != baseline]
        row += [r.failure[:40] or f"{r.output_error:.1e}/{r.gradient_error:.1e}" for r in line if r.system != "eager"]
        rows.append(row)
    lines = [measure.table(header, rows)]
    for kind in ("inference", "training"):
        for system in names:
            pairs = [(columns[m, k, baseline].seconds, columns[m, k, system].seconds) for m, k in keys if k == kind]
            ratios = [b / s for b, s in pairs if b == b and s == s]
            if system != baseline and ratios:
                mean = measure.geometric_mean(ratios)
                lines.append(f"geometric mean over {baseline}, {kind}, {system}: {mean:.3f}x ({len(ratios)} models)")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="eager,inductor,turret")
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--baseline", default="eager")
    parser.add_argument("--seconds", type=float, default=4.0, help="timing budget of one model and kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=_CLOCKS, default="wall")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    names = options.systems.split(",")
    baseline = options.baseline if options.baseline in names else names[0]
    results: list[Result] = []
    for name in options.models.split(","):
        for kind in options.kinds.split(","):
            results += compare(name, names, kind == "training", options.seconds, _CLOCKS[options.clock])
            line = "  ".join(f"{r.system} {r.failure or f'{r.seconds * 1e3:.2f} ms'}" for r in results[-len(names) :])
            print(f"{name} {kind}: {line}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps([attrs.asdict(r) for r in results], indent=1))
            if hasattr(torch, "_dynamo"):
                torch._dynamo.reset()
    print(report(results, names, baseline))
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
