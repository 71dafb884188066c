"""Run time, error, peak memory and compile time of models on a GPU, under several systems, in one run.

    python -m tests.benchmarks.device --systems eager,inductor,turret --models bert,gpt2 --json device.json

Each model and kind (inference, training) is a process of its own.  All compile at once, each system with an empty
cache folder, and then wait for the parent, which lets one after the other time its systems in turns, so that
nothing else uses the device or the host meanwhile.  Errors are relative norms against a float32 run of eager on
the same (rounded) weights and inputs; where two systems round at different places, one draw of the weights does not
tell which is nearer, so ``--draws`` takes the mean over several (and its standard error).  Peak memory is what a step
allocates above what was there before it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

from tests.benchmarks import bench, device_models, measure, systems


@attrs.define
class Result:
    """One system on one model.  Seconds are medians a call, bytes are above those held before the step."""

    model: str
    kind: str
    system: str
    seconds: float = float("nan")
    first_seconds: float = float("nan")
    output_errors: list[float] = attrs.field(factory=list)
    gradient_errors: list[float] = attrs.field(factory=list)
    """One a draw of the weights."""
    worst_gradient: float = 0.0
    """The largest error of one parameter's gradient, over all draws."""
    host_seconds: float = float("nan")
    """Until a call returns to a program that does not wait for the device."""
    peak_bytes: int = 0
    reserved_bytes: int = 0
    """Most that the allocator held in a step, for all systems of a process together: name one to see what it takes."""
    failure: str = ""


def prepare(name: str, kind: str, options: argparse.Namespace) -> tuple[list[Result], dict[str, bench.Subject]]:
    """Compile every system's copy, and compare its results with those of float32, for each draw of the weights."""
    training = kind == "training"
    size = device_models.TINY if options.tiny else device_models.Size()
    workload = device_models.build(name, size, training, options.device, getattr(torch, options.dtype))
    full = device_models.moved(copy.deepcopy(workload), options.device, torch.float32)
    exact = bench.subject(full, "eager", training)
    weights = [p.detach().clone() for p in workload.module.parameters()]
    results, subjects = [], {}
    for system in options.systems.split(","):
        result = Result(name, kind, system)
        results.append(result)
        try:
            if not options.imports:
                systems.import_of(system)
            start = time.perf_counter()
            made = bench.subject(workload, system, training)
            made.step()
            _wait(options.device)
            result.first_seconds = time.perf_counter() - start
            subjects[system] = made
        except Exception as error:
            result.failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            traceback.print_exc(limit=4)
    for draw in range(options.draws):
        drawn = _drawn(weights, draw)
        _load(exact, drawn)
        expected = exact.observe()
        for result in results:
            if result.system not in subjects:
                continue
            made = subjects[result.system]
            _load(made, drawn)
            found = made.observe()
            result.output_errors.append(measure.relative_error(found["output"], expected["output"]))
            if training:
                result.gradient_errors.append(measure.relative_error(found["gradient"], expected["gradient"]))
                worst = measure.worst_error(found["gradient"], expected["gradient"])
                result.worst_gradient = max(result.worst_gradient, worst)
    return results, subjects


def _drawn(weights: list[torch.Tensor], draw: int) -> list[torch.Tensor]:
    """The weights themselves first, then each weight off by a tenth or so."""
    if draw == 0:
        return weights
    torch.manual_seed(draw)
    return [w * (1 + torch.randn_like(w) / 10) for w in weights]


def _load(subject: bench.Subject, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, weight in zip(subject.parameters, weights, strict=True):
            parameter.copy_(weight)


def timed(results: list[Result], subjects: dict[str, bench.Subject], options: argparse.Namespace) -> None:
    """Fill in times and peak memory."""

    def waiting(step: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(options.calls):
                step()
            _wait(options.device)

        return run

    for made in subjects.values():
        made.step()
    times = measure.interleaved({s: waiting(m.step) for s, m in subjects.items()}, seconds=options.seconds)
    for result in results:
        if result.system not in subjects:
            continue
        result.seconds = statistics.median(times[result.system]) / options.calls
        result.host_seconds = statistics.median(_host_seconds(subjects[result.system].step, options.device))
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            subjects[result.system].step()
            result.peak_bytes = torch.cuda.max_memory_allocated() - before
            result.reserved_bytes = torch.cuda.max_memory_reserved()


def _host_seconds(step: Callable[[], Any], device: str, repeats: int = 11) -> list[float]:
    found = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    _wait(device)
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def child(name: str, kind: str, options: argparse.Namespace) -> None:
    """Compile, say ``ready``, wait for a line, time, and print the results as a line of JSON."""
    results, subjects = prepare(name, kind, options)
    if options.device == "cuda":
        torch.cuda.empty_cache()  # the others need the room while they wait
    print("ready", flush=True)
    sys.stdin.readline()
    timed(results, subjects, options)
    if options.explain:
        print(f"{name} {kind}:\n{graph_captures()}", file=sys.stderr, flush=True)
    print(json.dumps([attrs.asdict(r) for r in results]), flush=True)


def graph_captures() -> str:
    """What Turret recorded and replayed in this process, a line a graph, and why it did not."""
    import turret

    lines = []
    for told in turret.cudagraphs.report().functions:
        kinds = Counter(" ".join(decision.split(":")[0].split()[::2]) for decision in told.decisions)
        lines.append(
            f"  {told.name}: {told.skipped or dict(told.plain_calls) or 'always'}; {told.recordings} recordings, "
            f"{told.replays} replays, again because of {told.rerecordings[:3]}; {told.nodes} nodes, "
            f"{told.patched_nodes} patched, {told.bytes_copied} bytes copied; {dict(kinds)}"
        )
        lines += [f"    {decision}" for decision in told.decisions if " copied" in decision][:1]
    return "\n".join(lines)


def _start(name: str, kind: str, cache: str, options: argparse.Namespace) -> subprocess.Popen:
    folders = {f"{v}_CACHE_DIR": f"{cache}/{v}" for v in ("TURRET", "TORCHINDUCTOR", "TRITON")}
    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--child", f"{name} {kind}"]
    return subprocess.Popen(command, env=os.environ | folders, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(options: argparse.Namespace) -> list[Result]:
    """All models and kinds, at most ``--jobs`` processes compiling at a time; a batch is timed before the next."""
    jobs = [(name, kind) for name in options.models.split(",") for kind in options.kinds.split(",")]
    jobs = [(name, kind) for name, kind in jobs if kind == "inference" or name not in device_models.INFERENCE_ALONE]
    results: list[Result] = []
    for first in range(0, len(jobs), options.jobs):
        with tempfile.TemporaryDirectory(prefix="device-") as cache:
            batch = jobs[first : first + options.jobs]
            children = [_start(name, kind, f"{cache}/{name}-{kind}", options) for name, kind in batch]
            ready = [_line(process) == "ready" for process in children]
            for (name, kind), process, alive in zip(batch, children, ready, strict=True):
                said = process.communicate("go\n")[0].strip() if alive else ""
                if said:
                    results += [Result(**entry) for entry in json.loads(said)]
                else:
                    failure = f"the process ended with {process.wait()}"
                    results += [Result(name, kind, system, failure=failure) for system in options.systems.split(",")]
                if options.json:
                    options.json.write_text(json.dumps([attrs.asdict(r) for r in results], indent=1))
    return results


def _line(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def report(results: list[Result]) -> str:
    """A line a model, kind and system, then the geometric mean of eager's time over each system's."""
    accuracy = ["output error/1e-3", "gradient error/1e-3", "of one parameter"]
    header = [
        "model",
        "system",
        "ms",
        "x eager",
        "host ms",
        "first s",
        *accuracy,
        "peak MiB",
        "reserved MiB",
        "failure",
    ]
    eager = {(r.model, r.kind): r.seconds for r in results if r.system == "eager"}
    rows: list[list[object]] = []
    for r in results:
        ratio = eager.get((r.model, r.kind), float("nan")) / r.seconds
        figures = [f"{r.seconds * 1e3:.3f}", f"{ratio:.2f}", f"{r.host_seconds * 1e3:.3f}", f"{r.first_seconds:.1f}"]
        errors = [_mean(r.output_errors), _mean(r.gradient_errors), f"{1e3 * r.worst_gradient:.0f}"]
        held = [f"{r.peak_bytes / 2**20:.0f}", f"{r.reserved_bytes / 2**20:.0f}"]
        rows.append([f"{r.model} {r.kind}", r.system, *figures, *errors, *held, r.failure[:60]])
    lines = [measure.table(header, rows)]
    for kind in dict.fromkeys(r.kind for r in results):
        for system in dict.fromkeys(r.system for r in results if r.system != "eager"):
            chosen = [r for r in results if r.kind == kind and r.system == system and r.seconds == r.seconds]
            ratios = [eager[r.model, r.kind] / r.seconds for r in chosen if (r.model, r.kind) in eager]
            mean = measure.geometric_mean(ratios)
            lines.append(f"geometric mean over eager, {kind}, {system}: {mean:.3f}x ({len(ratios)} models)")
    return "\n".join(lines)


def _mean(errors: list[float]) -> str:
    """In thousandths, with the mean's standard error."""
    if not errors:
        return ""
    text = f"{1e3 * statistics.fmean(errors):.2f}"
    if len(errors) > 1:
        text += f" ± {1e3 * statistics.stdev(errors) / len(errors) ** 0.5:.2f}"
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="eager,inductor,turret")
    parser.add_argument("--models", default=",".join(device_models.MODELS))
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that all of it runs")
    parser.add_argument("--jobs", type=int, default=6, help="processes that compile at a time")
    parser.add_argument("--seconds", type=float, default=3.0, help="timing budget of one model and kind")
    parser.add_argument("--draws", type=int, default=1, help="draws of the weights that errors are the mean of")
    parser.add_argument("--calls", type=int, default=3, help="calls between two waits for the device")
    parser.add_argument("--explain", action="store_true", help="say what graph capture did")
    parser.add_argument("--imports", action="store_true", help="count imports to the first step (name one system)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child.split(), options)
        return 0
    results = run(options)
    print(report(results))
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
