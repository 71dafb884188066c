"""What the fuzz drivers share: their arguments, jobs of seeds, and a record from which a run goes on."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from turret.testing.kit.isolation import Death, run_jobs

Job = list[int]
"""First seed, and one past the last."""


def add_arguments(parser: argparse.ArgumentParser, *, timeout: float, batch: int, shrink: int) -> None:
    """Arguments of every driver, with the defaults that differ."""
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=batch, help="programs in one job")
    parser.add_argument("--shrink", type=int, default=shrink, help="attempts to shrink a failure; 0 does not")
    parser.add_argument("--timeout", type=float, default=timeout, help="seconds for one job, shrinking included")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no job after so long")
    parser.add_argument("--max-failures", type=int, default=50)
    parser.add_argument("--out", type=Path, help="file of records, one JSON object a line")
    parser.add_argument("--replay", type=int, metavar="SEED", help="check one seed and print its program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def drive(
    options: argparse.Namespace,
    record: Callable[[], Record],
    module: str,
    *,
    work: Callable[[argparse.Namespace], None],
    replay: Callable[[argparse.Namespace], int],
    told: Callable[[Record], str],
) -> int:
    """What the arguments of a driver ask for: the jobs of a worker, one seed checked here, or a run that is recorded.

    ``module`` is the driver's name, ``told`` says of a record what is printed at its end.  Returns the exit status.
    """
    if options.worker:
        work(options)
        return 0
    if options.replay is not None:
        return replay(options)
    made = record()
    made.run(module)
    print(told(made))
    return 0 if made.complete else 1


class Record:
    """What has been checked so far, in memory and in the output file.

    ``same`` names the options that a record is of; ``source_of`` gives the source of the programs of a job.
    """

    def __init__(self, options: argparse.Namespace, same: tuple[str, ...], source_of: Callable[[Job], str]) -> None:
        self.options, self.source_of = options, source_of
        self.done: set[int] = set()
        self.programs = self.checked_now = 0
        self.failures: list[dict[str, Any]] = []
        self.shared: list[int] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.started = time.perf_counter()
        self._told = self.started
        header = {key: getattr(options, key) for key in same}
        if options.out and options.out.exists():
            found, *lines = options.out.read_text().splitlines()
            if json.loads(found) != header:
                raise SystemExit(f"{options.out} is the record of another run: {found}")
            for line in lines:
                self._count(json.loads(line))
        elif options.out:
            options.out.write_text(json.dumps(header) + "\n")

    def jobs(self) -> Iterator[Job]:
        """What is left to do, until there are too many failures or time is up."""
        end = self.options.seed + self.options.programs
        for first in range(self.options.seed, end, self.options.batch):
            if len(self.failures) >= self.options.max_failures or self._late:
                return
            if first not in self.done:
                yield [first, min(first + self.options.batch, end)]

    def run(self, module: str) -> None:
        """Do what is left in workers, which are ``module`` with the same arguments and ``--worker``."""
        command = [sys.executable, "-m", module, *sys.argv[1:], "--worker"]
        run_jobs(command, self.jobs(), self.add, self.add_death, workers=self.options.workers)

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

    def add_death(self, job: Job, death: Death) -> None:
        """Where a worker died or hung is part of the record: most such failures do not come again."""
        failure = {"seed": job[0], "message": death.reason, "source": self.source_of(job), "printed": death.printed}
        self.add(job, {"failures": [failure], "counts": {}})

    def _count(self, entry: dict[str, Any]) -> None:
        first, end = entry["seeds"]
        self.done.add(first)
        self.programs += end - first
        self.failures += entry["failures"]
        self.shared += [failure["seed"] for failure in entry.get("shared", ())]
        self.counts.update(entry["counts"])

    def _progress(self, now: float) -> str:
        speed = self.checked_now / (now - self.started)
        left = min((self.options.programs - self.programs) / speed, self.started + self.options.seconds - now) / 60
        count = f"{self.programs}/{self.options.programs} programs, {len(self.failures)} failures"
        return f"{count}, {speed:.1f} programs/s, {left:.0f} min left"

    def summary(self, of: str, found: str) -> str:
        """A line for people; ``of`` says what was checked, ``found`` what else is worth a word."""
        seconds = time.perf_counter() - self.started
        seeds = ", ".join(str(failure["seed"]) for failure in self.failures) or "none"
        last = self.options.seed + self.options.programs - 1
        return (
            f"{of}: {self.programs} programs of seeds {self.options.seed} to {last}, "
            f"{len(self.failures)} failures (seeds: {seeds}), {found}; "
            f"this run {self.checked_now} programs in {seconds:.0f} s, {self.checked_now / seconds:.1f} programs/s"
        )

    @property
    def _late(self) -> bool:
        return time.perf_counter() - self.started > self.options.seconds

    @property
    def complete(self) -> bool:
        """Whether none failed, and all programs were checked that there was time for."""
        return not self.failures and (self.programs >= self.options.programs or self._late)
