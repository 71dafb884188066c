"""Checks many drawn programs against eager, in worker processes, and records seeds and failures.

    python tests/fuzz/run.py --programs 20000 --seed 0 --workers 2 --compiler turret --out fuzz.jsonl

Every job of ``--batch`` seeds is a line of the output file, and a run with the same file and arguments goes
on where the last one stopped. A worker that dies or hangs costs the programs it was on, which are recorded as
a failure. An error, or a wrong alias, where torch.compile's own tracing and partitioning end in one too (capture is
shared, and so is the saving of inputs that the program then writes to) is counted apart, as ``shared``. A failing
program is shrunk and printed as runnable source. ``--replay SEED`` checks one seed in this process.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compilers import NAMES, compiler_of

from turret.testing.isolation import run_jobs, serve

Job = list[int]
"""First seed, and one past the last."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compiler", default="turret", choices=NAMES)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=JSON", help="an option of the compiler")
    parser.add_argument("--batch", type=int, default=1, help="programs compiled together as one function")
    parser.add_argument("--skip", default="", help="operations to leave out, with commas")
    parser.add_argument("--families", default="", help="families of operations to draw from, with commas")
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument("--random", action="store_true", help="draw dropout and the like as well")
    parser.add_argument("--shrink", type=int, default=120, help="attempts to shrink a failure; 0 does not")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one job, shrinking included")
    parser.add_argument("--max-failures", type=int, default=50)
    parser.add_argument("--out", type=Path, help="file of records, one JSON object a line")
    parser.add_argument("--replay", type=int, metavar="SEED", help="check one seed and print its program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def features_of(options: argparse.Namespace) -> Any:
    from turret.testing import Features

    names = {key: frozenset(filter(None, getattr(options, key).split(","))) for key in ("skip", "families")}
    return Features(max_steps=options.max_steps, random=options.random, **names)


def compiler_under_test(options: argparse.Namespace) -> Any:
    pairs = (text.partition("=") for text in options.option)
    return compiler_of(options.compiler, {key: json.loads(value) for key, _, value in pairs})


class Record:
    """What has been checked so far, in memory and in the output file."""

    _SAME = ("compiler", "option", "skip", "families", "max_steps", "batch", "random", "seed")

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.done: set[int] = set()
        self.programs = self.checked_now = 0
        self.failures: list[dict[str, Any]] = []
        self.shared: list[int] = []
        self.operations: collections.Counter[str] = collections.Counter()
        self.started = time.perf_counter()
        self._told = self.started
        header = {key: getattr(options, key) for key in self._SAME}
        if options.out and options.out.exists():
            found, *lines = options.out.read_text().splitlines()
            if json.loads(found) != header:
                raise SystemExit(f"{options.out} is the record of another run: {found}")
            for line in lines:
                self._count(json.loads(line))
        elif options.out:
            options.out.write_text(json.dumps(header) + "\n")

    def jobs(self) -> Iterator[Job]:
        """What is left to do, until there are too many failures."""
        end = self.options.seed + self.options.programs
        for first in range(self.options.seed, end, self.options.batch):
            if len(self.failures) >= self.options.max_failures:
                return
            if first not in self.done:
                yield [first, min(first + self.options.batch, end)]

    def add(self, job: Job, answer: dict[str, Any]) -> None:
        entry = {"seeds": job, **answer}
        self._count(entry)
        self.checked_now += job[1] - job[0]
        if self.options.out:
            with self.options.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        for failure in answer["failures"]:
            print(f"seed {failure['seed']}: {failure['message']}\n\n{failure['source']}\n", flush=True)
        now = time.perf_counter()
        if now - self._told > 10:
            self._told = now
            print(self._progress(now), file=sys.stderr, flush=True)

    def add_death(self, job: Job, reason: str) -> None:
        from turret.testing import program_of_seed

        source = "\n\n".join(program_of_seed(s, features_of(self.options)).source() for s in range(*job))
        self.add(job, {"failures": [{"seed": job[0], "message": reason, "source": source}], "operations": {}})

    def _count(self, entry: dict[str, Any]) -> None:
        first, end = entry["seeds"]
        self.done.add(first)
        self.programs += end - first
        self.failures += entry["failures"]
        self.shared += [failure["seed"] for failure in entry.get("shared", ())]
        self.operations.update(entry["operations"])

    def _progress(self, now: float) -> str:
        speed = self.checked_now / (now - self.started)
        left = (self.options.programs - self.programs) / speed / 60
        count = f"{self.programs}/{self.options.programs} programs, {len(self.failures)} failures"
        return f"{count}, {speed:.1f} programs/s, {left:.0f} min left"

    def summary(self) -> str:
        seconds = time.perf_counter() - self.started
        seeds = ", ".join(str(failure["seed"]) for failure in self.failures) or "none"
        shared = ", ".join(map(str, self.shared)) or "none"
        last = self.options.seed + self.options.programs - 1
        return (
            f"{self.options.compiler}: {self.programs} programs of seeds {self.options.seed} to {last}, "
            f"{len(self.failures)} failures (seeds: {seeds}), {len(self.shared)} errors shared with torch.compile "
            f"(seeds: {shared}), {len(self.operations)} operations; "
            f"this run {self.checked_now} programs in {seconds:.0f} s, {self.checked_now / seconds:.1f} programs/s"
        )


def work(options: argparse.Namespace) -> None:
    """Check the seeds of each job; threads alternate between one and two, fixed by the seed."""
    import torch

    from turret.testing.conformance import check_seeds

    compiler, features = compiler_under_test(options), features_of(options)
    jobs = 0

    def handle(job: Job) -> dict[str, Any]:
        nonlocal jobs
        jobs += 1
        if jobs % 50 == 0:
            torch.compiler.reset()
        torch.set_num_threads(1 + job[0] // 10 % 2)
        checked = check_seeds(range(*job), compiler, features, shrink_attempts=options.shrink)
        failures, shared = [], []
        for f in checked.failures:
            found = {"seed": f.seed, "message": f.message, "source": f.program.source()}
            (shared if _fails_in_torch(f.program, f.message) else failures).append(found)
        operations = collections.Counter(name for program in checked.programs for name in program.ops)
        return {"failures": failures, "shared": shared, "operations": dict(operations)}

    serve(handle, options.timeout)


def _fails_in_torch(program: Any, message: str) -> bool:
    """Whether torch.compile, tracing forward and backward but compiling nothing, fails on a program in the same way.

    Only errors and aliases are looked at, which capture decides: it takes ``(x.mT, x.mT)`` for one tensor.  A graph has
    one backward for all of its outputs, which finds what it saved written to where eager does not look at it.
    """
    from turret.testing import Mismatch, check

    if "compiled raised" in message and "modified by an inplace operation" in message:
        return True
    kinds = [kind for kind in ("compiled raised", "aliasing") if kind in message]
    if not kinds:
        return False
    try:
        check(program, compiler_of("aot_eager_decomp_partition", {}))
    except Mismatch as mismatch:
        return any(kind in str(difference) for kind in kinds for difference in mismatch.differences)
    return False


def replay(options: argparse.Namespace) -> int:
    """Check one seed here, print its program and what is wrong with it."""
    from turret.testing import Mismatch, check, program_of_seed

    program = program_of_seed(options.replay, features_of(options))
    print(program.source())
    try:
        check(program, compiler_under_test(options))
    except Mismatch as mismatch:
        print("\n".join(str(difference) for difference in mismatch.differences))
        return 1
    return 0


def main() -> int:
    options = parse()
    if options.worker:
        work(options)
        return 0
    if options.replay is not None:
        return replay(options)
    record = Record(options)
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    run_jobs(command, record.jobs(), record.add, record.add_death, workers=options.workers)
    print(record.summary())
    return 1 if record.failures or record.programs < options.programs else 0


if __name__ == "__main__":
    sys.exit(main())
