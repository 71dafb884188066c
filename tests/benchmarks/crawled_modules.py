"""Capture of modules crawled from public repositories: Turret, torch._dynamo and eager, module by module.

    python -m tests.benchmarks.crawled_modules PARITYBENCH --every 20 --record results.jsonl

``PARITYBENCH`` is a checkout of github:jansel/pytorch-jit-paritybench.  Each test case of ``generated/`` is built and
called twice: eagerly (two times over, to see that it runs and gives the same again), captured by Turret and by
torch._dynamo with ``fullgraph=True``, and by Turret with graph breaks.  Graphs run as they are, uncompiled.  Results,
state after the calls and gradients' flags must equal eager's.  Every tenth file (index 5 of 10) is kept for
independent checks and not opened; ``--held-back`` runs those and no others.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import json
import os
import random
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from tests.benchmarks.measure import table
from turret.testing.kit.isolation import Death, run_jobs, serve

SECONDS = {"eager": 15.0, "turret": 120.0, "breaks": 120.0, "dynamo": 120.0}
"""How long each may take, for all of its calls; a module that is slower eagerly does not count."""


class Discrepancy(AssertionError):
    """A captured module gave something else than eager."""


def files(root: Path, held_back: bool = False) -> list[Path]:
    """The files with test cases, sorted; of every ten the sixth is held back."""
    listed = sorted(p for p in (root / "generated").glob("*.py") if b"TESTCASES" in p.read_bytes())
    return [p for n, p in enumerate(listed) if (n % 10 == 5) == held_back]


def load(path: Path) -> Any:
    """A crawled file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def build(case: tuple, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The module of a case, for inference, with the same weights each time: those that were uninitialised, too."""
    seed(0)
    args, kwargs = case[1]()
    module = case[0](*args, **kwargs)
    with contextlib.suppress(Exception):
        module.eval()
        with torch.no_grad():
            for name, held in module.state_dict().items():
                if isinstance(held, torch.Tensor) and weights.setdefault(name, held.clone()).shape == held.shape:
                    held.copy_(weights[name])
    return module


def observe(
    case: tuple, compile: Callable[[torch.nn.Module], Callable], weights: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Results of two calls of a fresh module, and the state that they leave behind."""
    module = build(case, weights)
    call = compile(module)
    results = []
    for number in range(2):
        seed(1)
        args, kwargs = case[2]()
        seed(2 + number)
        results.append(call(*args, **kwargs))
    state = module.state_dict() if isinstance(module, torch.nn.Module) else {}
    return {"results": results, "state": dict(state)}


def same(found: Any, expected: Any, where: str) -> None:
    """Deep equality of types, values and tensors.  Raises ``Discrepancy``."""
    if type(found) is not type(expected):
        raise Discrepancy(f"{where}: {type(found).__name__} instead of {type(expected).__name__}")
    if isinstance(expected, torch.Tensor):
        if found.requires_grad != expected.requires_grad:
            raise Discrepancy(f"{where}: requires_grad is {found.requires_grad}")
        if found.stride() != expected.stride() and expected.layout is torch.strided:
            raise Discrepancy(f"{where}: strides {found.stride()} instead of {expected.stride()}")
        try:
            torch.testing.assert_close(found, expected, equal_nan=True)
        except AssertionError as error:
            raise Discrepancy(f"{where}: {str(error).splitlines()[0]}") from None
    elif isinstance(expected, (list, tuple, set, frozenset, collections.deque)):
        if len(found) != len(expected):
            raise Discrepancy(f"{where}: {len(found)} items instead of {len(expected)}")
        if not isinstance(expected, (set, frozenset)):
            for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
                same(mine, theirs, f"{where}[{number}]")
    elif isinstance(expected, dict):
        if list(found) != list(expected):
            raise Discrepancy(f"{where}: keys {list(found)} instead of {list(expected)}")
        for key in expected:
            same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (int, float, str, complex, numpy.ndarray, torch.dtype, torch.device, type(None))):
        if not numpy.array_equal(found, expected) and not (found != found and expected != expected):  # type: ignore[arg-type]
            raise Discrepancy(f"{where}: {found} instead of {expected}")
    elif hasattr(expected, "__dict__") and not callable(expected) and not isinstance(expected, torch.nn.Module):
        same(dict(vars(found)), dict(vars(expected)), f"{where}.__dict__")


def with_turret(fullgraph: bool) -> Callable[[torch.nn.Module], Callable]:
    """Own capture; graphs run as they are."""
    from turret.hooks import plugin_manager
    from turret.pipeline.stage_calls import create_context
    from turret.plugins.capture.dispatching.entry import turret_capture

    manager = plugin_manager.create()
    options = {"on_error": "raise"}
    context = create_context(plugin_manager.configure(manager, None, options), manager)

    def compile(module: torch.nn.Module) -> Callable:
        return turret_capture(
            context=context,
            target=module.__call__,
            compile_graph=lambda captured: captured.module,
            fullgraph=fullgraph,
            dynamic=None,
        )

    return compile


def with_dynamo(module: torch.nn.Module) -> Callable:
    import torch._dynamo

    torch._dynamo.reset()
    return torch.compile(module, backend="eager", fullgraph=True)


def short(error: BaseException) -> str:
    """One line that names a failure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:700]}" if lines else type(error).__name__


def attempt(
    case: tuple, compile: Callable, weights: dict[str, torch.Tensor], expected: dict[str, Any] | None
) -> dict[str, Any]:
    """One system on one case: the outcome and why."""
    start = time.perf_counter()
    try:
        found = observe(case, compile, weights)
        if expected is not None:
            same(found, expected, "")
        outcome, reason = "ok", ""
    except Discrepancy as error:
        outcome, reason = "mismatch", str(error)
    except Exception as error:
        expected_failure = type(error).__name__ in ("CaptureError", "Unsupported") or "dynamo" in type(error).__module__
        outcome, reason = ("unsupported" if expected_failure else "error"), short(error)
        if outcome == "error":
            reason += " @ " + " < ".join(
                f"{Path(f.filename).name}:{f.lineno}" for f in reversed(traceback.extract_tb(error.__traceback__)[-3:])
            )
    return {"outcome": outcome, "reason": reason, "seconds": time.perf_counter() - start}


def run_case(case: tuple, quick: bool, begin: Callable[[str], None]) -> dict[str, Any]:
    """Everything about one test case; ``quick``: nothing more about a case that Turret captures whole."""
    begin("eager")
    answer: dict[str, Any] = {"module": case[0].__name__}
    weights: dict[str, torch.Tensor] = {}
    try:
        expected = observe(case, lambda module: module, weights)
    except Exception as error:
        return answer | {"eager": "fails", "reason": short(error)}
    try:
        same(observe(case, lambda module: module, weights), expected, "")
        answer["eager"] = "ok"
    except Exception as error:
        answer |= {"eager": "varies", "reason": short(error)}
        expected = None  # type: ignore[assignment]
    begin("turret")
    answer["turret"] = attempt(case, with_turret(True), weights, expected)
    if quick and answer["turret"]["outcome"] == "ok":
        return answer
    begin("breaks")
    answer["breaks"] = attempt(case, with_turret(False), weights, expected)
    begin("dynamo")
    answer["dynamo"] = attempt(case, with_dynamo, weights, expected)
    begin("eager")
    try:  # some cases use up what their file holds, and run a few times only
        observe(case, lambda module: module, weights)
    except Exception as error:
        return {"module": case[0].__name__, "eager": "fails", "reason": f"later: {short(error)}"}
    return answer


# Processes: a worker answers one file at a time, and runs its cases in a forked child that may crash or hang.


def run_file(path: str, quick: bool, first: int, only: str, emit: Callable[[dict], None]) -> None:
    """In the child: all cases from ``first`` on."""
    module = load(Path(path))
    for number, case in enumerate(module.TESTCASES):
        unfinished = getattr(case[0].forward, "__name__", "") == "_forward_unimplemented"
        if number < first or unfinished or (only and not re.search(only, case[0].__name__)):
            continue
        named = {"case": number, "module": case[0].__name__}
        emit(named | run_case(case, quick, lambda stage, named=named: emit({"begin": stage, **named})))


def child(job: dict[str, Any], first: int) -> Iterator[dict[str, Any]]:
    """What a forked child reports, to its end; then how it ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:

            def emit(row: dict) -> None:
                pipe.write(json.dumps(row) + "\n")
                pipe.flush()

            try:
                run_file(job["path"], job["quick"], first, job["only"], emit)
            except BaseException as error:
                emit({"unloadable": short(error)})
        os._exit(0)
    os.close(write)
    pending = b""
    ended, stage = "crash", "eager"
    while True:
        ready, _, _ = select.select([read], [], [], SECONDS[stage])
        if not ready:
            ended = "timeout"
            os.kill(pid, signal.SIGKILL)
            break
        data = os.read(read, 1 << 16)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for row in map(json.loads, lines):
            stage = row.get("begin", "eager")
            yield row
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    yield {"ended": "" if status == 0 else f"{ended} (status {status})"}


def handle(job: dict[str, Any]) -> list[dict[str, Any]]:
    """In the worker: the rows of one file."""
    rows: list[dict[str, Any]] = []
    first: int | None = 0
    while first is not None:
        begun: dict[str, Any] = {}
        for row in child(job, first):
            if "begin" in row:
                begun = row
            elif "eager" in row:
                rows.append(row)
            elif "unloadable" in row:
                rows.append({"case": -1, "module": "", "eager": "fails", "reason": row["unloadable"]})
                begun = {}
            elif row["ended"] and begun:
                stage = begun.pop("begin")
                slow = stage == "eager" and row["ended"].startswith("timeout")
                rows.append(begun | {"eager": "slow" if slow else "?", "reason": f"{stage}: {row['ended']}"})
                first = begun["case"] + 1
            else:
                first = None
    for row in rows:
        row["file"] = Path(job["path"]).stem
    return rows


def work() -> None:
    """A worker process."""
    import torch._dynamo

    from tests.benchmarks import crawled_stubs

    with_turret(False)(torch.nn.ReLU())(torch.ones(2))
    with_dynamo(torch.nn.ReLU())(torch.ones(2))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    crawled_stubs.install()
    serve(handle, timeout=3600.0)


# The report.


def general(reason: str) -> str:
    """A reason without what differs from module to module."""
    reason = re.sub(r"^CaptureError: \S+ cannot be captured as one graph: ", "", reason)
    reason = re.split(r" (?:from user code|Developer debug|Set TORCHDYNAMO|File \")", reason)[0]
    reason = re.sub(r"0x[0-9a-f]+|\b\d+\b", "N", reason)
    return reason[:180]


def report(rows: list[dict[str, Any]], listed: int = 60) -> str:
    """The table and the reasons, most frequent first."""
    runs = [r for r in rows if r["eager"] in ("ok", "varies")]
    cases = [r for r in rows if r["case"] >= 0]
    ended = [r for r in rows if r["eager"] == "?"]

    def count(system: str, *outcomes: str) -> int:
        return sum(r.get(system, {}).get("outcome") in outcomes for r in runs)

    behind = [r for r in runs if r.get("dynamo", {}).get("outcome") == "ok" and r["turret"]["outcome"] != "ok"]
    lines = [
        table(
            ("", "modules", "share"),
            [
                (name, number, f"{100 * number / max(1, len(runs)):.2f} %")
                for name, number in (
                    ("all", len(cases)),
                    ("eager runs", len(runs)),
                    ("of these the same again", sum(r["eager"] == "ok" for r in runs)),
                    ("turret fullgraph ok", count("turret", "ok")),
                    ("dynamo fullgraph ok", count("dynamo", "ok")),
                    ("dynamo ok, turret not", len(behind)),
                    ("turret with breaks ok", count("breaks", "ok")),
                    ("turret mismatches, fullgraph", count("turret", "mismatch")),
                    ("turret mismatches, with breaks", count("breaks", "mismatch")),
                    ("turret errors, fullgraph", count("turret", "error")),
                    ("turret errors, with breaks", count("breaks", "error", "unsupported")),
                    ("dynamo mismatches or errors", count("dynamo", "mismatch", "error")),
                    ("crashes and timeouts", len(ended)),
                )
            ],
        )
    ]
    for system in ("turret", "breaks"):
        reasons: dict[str, list[str]] = collections.defaultdict(list)
        for row in runs:
            if row.get(system, {"outcome": "ok"})["outcome"] != "ok":
                better = "+" if row.get("dynamo", {}).get("outcome") == "ok" else "-"
                key = f"{row[system]['outcome']}: {general(row[system]['reason'])}"
                reasons[key].append(f"{better}{row['file']}:{row['case']}")
        lines += ["", f"{system}: {sum(map(len, reasons.values()))} failures"]
        for key, where in sorted(reasons.items(), key=lambda item: -len(item[1]))[:listed]:
            lines.append(f"{len(where):5} {key}\n        {' '.join(where[:4])}")
    lines += [f"ended: {r['file']}:{r['case']} {r['module']} {r['reason']}" for r in ended]
    return "\n".join(lines)


def chosen(root: Path, options: argparse.Namespace) -> list[Path]:
    """The files of this run."""
    if options.files:
        return [root / "generated" / f"{name}.py" for name in options.files]
    everything = files(root, options.held_back)
    return everything[options.offset :: options.every]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("--every", type=int, default=1, help="run each Nth file")
    parser.add_argument("--offset", type=int, default=0, help="the first file of a sample")
    parser.add_argument("--files", nargs="*", help="run these files (names without .py)")
    parser.add_argument("--only", default="", help="a pattern for names of module classes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path, help="one JSON line a case; files found there are not run again")
    parser.add_argument("--quick", action="store_true", help="run nothing more of what Turret captures whole")
    parser.add_argument("--held-back", action="store_true", help="run the files kept for independent checks")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    rows: list[dict[str, Any]] = []
    if options.record and options.record.exists():
        rows = [json.loads(line) for line in options.record.read_text().splitlines()]
    done = {row["file"] for row in rows}
    jobs = [
        {"path": str(path), "quick": options.quick, "only": options.only}
        for path in chosen(options.root, options)
        if path.stem not in done
    ]
    random.Random(0).shuffle(jobs)

    def add(job: dict[str, Any], answer: list[dict[str, Any]]) -> None:
        rows.extend(answer)
        if options.record:
            with options.record.open("a") as record:
                record.writelines(json.dumps(row) + "\n" for row in answer)

    def add_death(job: dict[str, Any], death: Death) -> None:
        add(job, [{"file": Path(job["path"]).stem, "case": 0, "module": "", "eager": "?", "reason": death.reason}])

    environment = {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __spec__.name, "--worker"]
    run_jobs(command, jobs, add, add_death, workers=options.workers, environment=environment)
    print(report(rows))


if __name__ == "__main__":
    main()
