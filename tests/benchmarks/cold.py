"""Cold compile time in a fresh process with empty caches, and the warm start of a second process.

    python -m tests.benchmarks.cold --systems inductor,turret --models bert-2,bert-12 --repeat 3

Each measurement is a process of its own: import torch and transformers, build the model, call it once eagerly;
then import the system (``import``), compile and run the first step (``compile``: forward, and backward in
training), then a few more steps (``step``).  The first process finds empty cache folders, the second one
(``warm``) those that the first one left.  Systems take turns; figures are medians over ``--repeat``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs

_CACHE_VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TURRET_CACHE_DIR": "turret",
    "XDG_CACHE_HOME": "xdg",
}

_MODELS = "bert-2,bert-12,gpt2-12,llama-12,t5-6,vit-12,resnet18,unet,lstm,dlrm,pointwise"


@attrs.define
class ColdResult:
    """Seconds of one system on one model; medians over the repetitions that succeeded."""

    model: str
    kind: str
    system: str
    import_seconds: float = float("nan")
    cold_seconds: float = float("nan")
    warm_seconds: float = float("nan")
    step_seconds: float = float("nan")
    failure: str = ""


def child(model: str, system: str, training: bool, threads: int) -> dict[str, float]:
    """What one fresh process measures; run by ``main --child``."""
    import torch

    from tests.benchmarks import measure, models, systems

    torch.set_num_threads(threads)
    workload = models.build(model, training=training)
    parameters = list(workload.module.parameters())

    def step(function: object) -> list[torch.Tensor]:
        for parameter in parameters:
            parameter.grad = None
        if training:
            workload.loss(function(*workload.training_inputs)).backward()
            return [p.grad for p in parameters]
        with torch.no_grad():
            return measure.tensors_of(function(*workload.inputs))

    expected = step(workload.module)
    start = time.perf_counter()
    systems.import_of(system)
    imported = time.perf_counter()
    compiled = systems.compiler_of(system)(workload.module)
    got = step(compiled)
    done = time.perf_counter()
    steps = []
    for _ in range(5):
        before = time.perf_counter()
        step(compiled)
        steps.append(time.perf_counter() - before)
    return {
        "import": imported - start,
        "compile": done - imported,
        "step": statistics.median(steps),
        "error": measure.relative_error(got, expected),
    }


def launch(model: str, system: str, training: bool, threads: int, caches: Path, timeout: float) -> dict[str, float]:
    """Run ``child`` in a fresh process whose caches live under ``caches``; raises ``RuntimeError`` with its error."""
    environment = os.environ | {name: str(caches / folder) for name, folder in _CACHE_VARIABLES.items()}
    environment.pop("TORCHINDUCTOR_FORCE_DISABLE_CACHES", None)
    if environment.pop("PYTHONDONTWRITEBYTECODE", None):  # compiling modules would be most of a warm start
        environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "turret-benchmark-bytecode"))
    environment |= {"OMP_NUM_THREADS": str(threads), "TMPDIR": str(caches), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", __spec__.name, "--child", "--models", model, "--systems", system]
    command += ["--kinds", "training" if training else "inference", "--threads", str(threads)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"more than {timeout:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_all(cases: list[tuple[str, str]], names: list[str], options: argparse.Namespace) -> list[ColdResult]:
    """Cold and warm processes of all systems in turns, ``--repeat`` times."""
    results = []
    for model, kind in cases:
        samples: dict[str, list[tuple[dict, dict]]] = {name: [] for name in names}
        failures: dict[str, str] = {}
        for _ in range(options.repeat):
            for name in names:
                if name in failures:
                    continue
                try:
                    samples[name].append(_cold_and_warm(model, name, kind == "training", options))
                except RuntimeError as error:
                    failures[name] = str(error)
        for name in names:
            result = ColdResult(model, kind, name, failure=failures.get(name, ""))
            if samples[name]:
                cold, warm = zip(*samples[name], strict=True)
                result.import_seconds = statistics.median(c["import"] for c in cold)
                result.cold_seconds = statistics.median(c["compile"] for c in cold)
                result.warm_seconds = statistics.median(w["compile"] for w in warm)
                result.step_seconds = statistics.median(c["step"] for c in cold)
                worst = max(run["error"] for run in (*cold, *warm))
                if not worst < 1e-3:
                    result.failure = f"wrong result: relative error {worst:.1e}"
            results.append(result)
            print(_line(result), file=sys.stderr, flush=True)
    return results


def _cold_and_warm(model: str, system: str, training: bool, options: argparse.Namespace) -> tuple[dict, dict]:
    with tempfile.TemporaryDirectory() as folder:
        caches = Path(folder)
        cold = launch(model, system, training, options.threads, caches, options.timeout)
        warm = launch(model, system, training, options.threads, caches, options.timeout)
    return cold, warm


def _line(result: ColdResult) -> str:
    if result.failure:
        return f"{result.model} {result.kind} {result.system}: {result.failure}"
    return (
        f"{result.model} {result.kind} {result.system}: import {result.import_seconds:.2f} s, cold "
        f"{result.cold_seconds:.2f} s, warm {result.warm_seconds:.2f} s, step {result.step_seconds * 1e3:.1f} ms"
    )


def report(results: list[ColdResult], names: list[str]) -> str:
    """A line a case; the ratios are over the first system."""
    from tests.benchmarks import measure

    columns = {(r.model, r.kind, r.system): r for r in results}
    keys = list(dict.fromkeys((r.model, r.kind) for r in results))
    header = ["model"]
    for name in names:
        header += [f"{name} import s", "cold s", "warm s", "warm/cold"]
    header += [f"{name} cold/{names[0]}" for name in names[1:]]
    rows = []
    for model, kind in keys:
        line = [columns[model, kind, name] for name in names]
        row: list[object] = [f"{model} {kind}"]
        for r in line:
            row += [f"{r.import_seconds:.2f}", f"{r.cold_seconds:.2f}", f"{r.warm_seconds:.2f}"]
            row.append(f"{r.warm_seconds / r.cold_seconds:.2f}")
        row += [f"{r.cold_seconds / line[0].cold_seconds:.2f}" for r in line[1:]]
        rows.append(row)
    lines = [measure.table(header, rows)]
    for name in names[1:]:
        ratios = [columns[m, k, name].cold_seconds / columns[m, k, names[0]].cold_seconds for m, k in keys]
        known = [r for r in ratios if r == r]
        mean = measure.geometric_mean(known)
        lines.append(f"geometric mean of cold compile, {name} over {names[0]}: {mean:.3f} ({len(known)} cases)")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="inductor,turret")
    parser.add_argument("--models", default=_MODELS)
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names, chosen, kinds = options.systems.split(","), options.models.split(","), options.kinds.split(",")
    if options.child:
        print(json.dumps(child(chosen[0], names[0], kinds[0] == "training", options.threads)))
        return 0
    results = measure_all([(m, k) for m in chosen for k in kinds], names, options)
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(r) for r in results], indent=1))
    print(report(results, names))
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
