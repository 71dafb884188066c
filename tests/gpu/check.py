"""Checks a GPU in one run: correctness against eager, streams and memory, speed beside torch.compile.

Usage, from the root of a checkout (nothing needs to be installed): ``python -m tests.gpu.check [--only WORD[,WORD]]
[--skip-timing] [--budget SECONDS]``.  Exits with 1 where anything is wrong, and where words name no check.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.gpu import tree_import  # isort: skip  (makes turret importable)
import torch

import turret
from tests.gpu.cases import CASES, DEVICE, Case


def describe(error: BaseException) -> str:
    """The last lines of a failure: where, and what."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if str(tree_import.ROOT) in f.filename and "/tests/" not in f.filename] or frames[-1:]
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = "\n        ".join(str(cause).strip().splitlines()[:14])
    where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}" if inside else "?"
    return f"{type(cause).__name__} at {where}: {text}"


class Report:
    """What passed, what came out wrong, and what was refused by name (and would have run eagerly)."""

    def __init__(self, budget: float) -> None:
        self.deadline = time.monotonic() + budget
        self.passed = 0
        self.failures: list[str] = []
        self.refused: list[str] = []
        self.left_out = 0

    def alive(self) -> bool:
        """Whether there is time for one more check; what there is none for is counted."""
        in_time = time.monotonic() < self.deadline
        self.left_out += not in_time
        return in_time

    def attempt(self, name: str, run: Callable[[], str | None]) -> None:
        """Run one check; ``run`` returns what is wrong, or None."""
        try:
            wrong = run()
        except Exception as error:
            wrong = describe(error)
            if "UnsupportedError" in wrong:
                self.refused.append(f"{name}: {wrong.splitlines()[-1].strip()[:150]}")
                return
            if os.environ.get("TURRET_TRACEBACK"):
                traceback.print_exc()
        if wrong is None:
            self.passed += 1
            return
        self.failures.append(name)
        print(f"  WRONG {name}: {wrong}", flush=True)


def is_chosen(name: str, only: str) -> bool:
    """Whether a check's name contains one of the words, which commas part, or is what a word says behind a ``=``."""
    return any(word in name or word == f"={name}" for word in only.split(","))


def check_case(case: Case, dtype: torch.dtype, train: bool, dynamic: bool | None) -> str | None:
    from tests.gpu.compare import check

    found, allowed = check(case, dtype, train, dynamic=dynamic)
    return None if found <= allowed else f"relative error {found:.2e}, allowed {allowed:.2e}"


def correctness(report: Report, only: str) -> None:
    for case in CASES:
        if not is_chosen(case.name, only) or not report.alive():
            continue
        start = time.monotonic()
        for dtype in case.dtypes:
            for train in (False, True) if case.train else (False,):
                for dynamic in (False, True) if dtype == torch.float32 else (False,):
                    role = f"{'train' if train else 'infer'}{' dynamic' if dynamic else ''}"
                    name = f"{case.name}, {str(dtype).removeprefix('torch.')}, {role}"
                    report.attempt(name, lambda c=case, d=dtype, t=train, y=dynamic: check_case(c, d, t, y))
        print(f"  {case.name} ({time.monotonic() - start:.1f} s)", flush=True)


def special(report: Report, only: str) -> None:
    from tests.gpu.special import SPECIAL

    for run in SPECIAL:
        if is_chosen(run.__name__, only) and report.alive():
            turret.reset()
            report.attempt(run.__name__, run)
            print(f"  {run.__name__}", flush=True)


def recordings(report: Report, only: str) -> None:
    """The checks of graph capture, with what each saw."""
    from tests.gpu.graph_checks import GRAPH_CHECKS, Place
    from turret.hooks.devices import device_for

    place = Place(device_for(DEVICE).graphs, torch.device(DEVICE, 0), busy=os.cpu_count() or 1)
    for run in GRAPH_CHECKS:
        if is_chosen(run.__name__, only) and report.alive():
            print(f"  {run.__name__}", flush=True)
            report.attempt(run.__name__, lambda run=run: print(*(f"    {line}" for line in run(place)), sep="\n"))


def systems() -> dict[str, Callable]:
    """Eager, torch.compile and Turret by name."""
    return {
        "eager": lambda f: f,
        "torch.compile": torch.compile,
        "turret": lambda f: turret.compile(f, options={"on_error": "raise"}),
    }


def dynamic_systems() -> dict[str, Callable]:
    """The compilers, with all sizes symbolic."""
    return {
        "torch.compile": lambda f: torch.compile(f, dynamic=True),
        "turret": lambda f: turret.compile(f, dynamic=True, options={"on_error": "raise"}),
    }


def timings(report: Report) -> None:
    from tests.gpu import timing

    for title, run in (
        ("tiny kernels", lambda: timing.launch_cost(systems())),
        ("memory-bound kernels", lambda: timing.bandwidth_table(systems(), report.alive)),
        ("of dynamic sizes", lambda: timing.dynamic_table(dynamic_systems(), report.alive)),
        ("models", lambda: timing.model_table(systems(), report.alive)),
        ("first training step of 12 blocks", lambda: timing.compile_times(__spec__.name)),
    ):
        if report.alive():
            print(f"{title}:", flush=True)
            report.attempt(title, run)
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="run checks whose name contains one of these (=NAME: is), with commas between"
    )
    parser.add_argument("--skip-timing", action="store_true")
    parser.add_argument("--skip-correctness", action="store_true")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no further check starts")
    parser.add_argument("--compile-once", choices=("turret", "torch.compile"), help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cache:
        os.environ["TURRET_CACHE_DIR"] = f"{options.cache}/turret"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{options.cache}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{options.cache}/triton"
    if options.compile_once:
        from tests.gpu import timing

        timing.compile_once(systems()[options.compile_once])
        return 0
    from turret.api.doctor import checks

    for found in checks():
        print(f"{'ok     ' if found.works else 'missing'} {found.name}: {found.detail} {found.remedy}", flush=True)
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to check")
        return 1
    report = Report(options.budget)
    if not options.skip_correctness:
        print("correctness against eager:", flush=True)
        correctness(report, options.only)
        if DEVICE == "cuda":
            print("streams, threads, memory:", flush=True)
            special(report, options.only)
            print("recorded graphs:", flush=True)
            recordings(report, options.only)
    if not options.skip_timing and not options.only and DEVICE == "cuda":
        timings(report)
    counts = f"{report.passed} right, {len(report.failures)} wrong, {len(report.refused)} refused (eager by default)"
    print(counts + (f", time ran out for {report.left_out}" if report.left_out else ""))
    for line in report.refused:
        print(f"  refused: {line}")
    for name in report.failures:
        print(f"  wrong: {name}")
    if not (report.passed or report.failures or report.refused or options.skip_correctness):
        print(f"no check has any of {options.only!r} in its name, or time was up before the first")
        return 1
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
