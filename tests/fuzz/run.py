"""Checks many drawn programs against eager, in worker processes, and records seeds and failures.

    python tests/fuzz/run.py --programs 20000 --seed 0 --workers 2 --compiler turret --out fuzz.jsonl

Seeds ``S .. S+N-1`` are worked off in chunks; each finished chunk is a line of the output file, and a run with the
same file goes on where the last one stopped.  A worker that dies or hangs costs the program it was on, which
is recorded as a failure.  A failing program is shrunk and printed as runnable source.  ``--replay SEED`` checks
one seed in this process.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CHUNK = 20
"""Programs between two records; chunks alternate between one and two threads."""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.worker:
        return work(options)
    if options.replay is not None:
        return replay(options)
    record = Record(options)
    todo: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for first in range(options.seed, options.seed + options.programs, CHUNK):
        if first not in record.done:
            todo.put((first, min(CHUNK, options.seed + options.programs - first)))
    threads = [threading.Thread(target=drive, args=(options, todo, record)) for _ in range(options.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(record.summary())
    return 1 if record.failures or record.programs < options.programs else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compiler", default="turret")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=JSON", help="an option of the compiler")
    parser.add_argument("--batch", type=int, default=1, help="programs compiled together as one function")
    parser.add_argument("--skip", default="", help="operations to leave out, with commas")
    parser.add_argument("--families", default="", help="families of operations to draw from, with commas")
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument("--shrink", type=int, default=120, help="attempts to shrink a failure; 0 does not")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one program")
    parser.add_argument("--max-failures", type=int, default=50)
    parser.add_argument("--out", type=Path, help="file of records, one JSON object a line")
    parser.add_argument("--replay", type=int, metavar="SEED", help="check one seed and print its program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# -- the parent -----------------------------------------------------------------------------------------------------


class Record:
    """What has been checked so far, in memory and in the output file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.done: set[int] = set()
        self.programs = 0
        self.checked_now = 0
        self.failures: list[dict[str, Any]] = []
        self.operations: collections.Counter[str] = collections.Counter()
        self.started = time.perf_counter()
        self._lock = threading.Lock()
        self._key = {k: str(getattr(options, k)) for k in ("compiler", "option", "skip", "families", "max_steps", "batch")}
        if options.out and options.out.exists():
            for line in options.out.read_text().splitlines():
                chunk = json.loads(line)
                if chunk["key"] == self._key and self._wanted(chunk["first"]):
                    self._count(chunk)

    def _wanted(self, first: int) -> bool:
        seed = self.options.seed
        return seed <= first < seed + self.options.programs and (first - seed) % CHUNK == 0

    def _count(self, chunk: dict[str, Any]) -> None:
        self.done.add(chunk["first"])
        self.programs += chunk["count"]
        self.failures += chunk["failures"]
        self.operations.update(chunk["operations"])

    @property
    def full(self) -> bool:
        return len(self.failures) >= self.options.max_failures

    def add(self, chunk: dict[str, Any]) -> None:
        with self._lock:
            self._count(chunk)
            self.checked_now += chunk["count"]
            if self.options.out:
                with self.options.out.open("a") as file:
                    file.write(json.dumps({"key": self._key, **chunk}) + "\n")
            for failure in chunk["failures"]:
                print(f"seed {failure['seed']}: {failure['message']}\n\n{failure['source']}\n", flush=True)
            speed = self.checked_now / (time.perf_counter() - self.started)
            left = (self.options.programs - self.programs) / speed
            print(
                f"{self.programs}/{self.options.programs} programs, {len(self.failures)} failures, "
                f"{speed:.1f} programs/s, {left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )

    def summary(self) -> str:
        seconds = time.perf_counter() - self.started
        seeds = ", ".join(str(failure["seed"]) for failure in self.failures) or "none"
        return (
            f"{self.options.compiler}: {self.programs} programs (seeds {self.options.seed} to "
            f"{self.options.seed + self.options.programs - 1}), {len(self.failures)} failures (seeds: {seeds}), "
            f"{len(self.operations)} operations; this run {self.checked_now} programs in {seconds:.0f} s, "
            f"{self.checked_now / seconds:.1f} programs/s"
        )


def drive(options: argparse.Namespace, todo: queue.SimpleQueue, record: Record) -> None:
    """Feed chunks to a worker process, starting a new one when it dies."""
    worker: subprocess.Popen | None = None
    try:
        while not record.full:
            try:
                first, count = todo.get_nowait()
            except queue.Empty:
                return
            chunk = {"first": first, "count": count, "failures": [], "operations": {}}
            start = first
            while start < first + count:
                if worker is None or worker.poll() is not None:
                    worker = spawn()
                start = _feed(worker, start, first + count, chunk)
            record.add(chunk)
    finally:
        if worker is not None:
            worker.kill()
            worker.wait()


def spawn() -> subprocess.Popen:
    """A worker with this process's arguments."""
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _feed(worker: subprocess.Popen, start: int, end: int, chunk: dict[str, Any]) -> int:
    """Have the worker check seeds ``start`` to ``end``; return the seed to go on with."""
    assert worker.stdin is not None and worker.stdout is not None
    current = start
    try:
        worker.stdin.write(json.dumps([start, end]) + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            if not line.startswith("{"):
                continue
            message = json.loads(line)
            if "at" in message:
                current = message["at"]
            else:
                chunk["failures"] += message["failures"]
                for name, times in message["operations"].items():
                    chunk["operations"][name] = chunk["operations"].get(name, 0) + times
                if message["end"]:
                    return end
    except BrokenPipeError:
        pass
    status = worker.wait()
    reason = f"the worker died with status {status} (1: it took more than {parse(None).timeout:.0f} s a program)"
    chunk["failures"].append({"seed": current, "message": reason, "source": _source_of(current)})
    return current + 1


def _source_of(seed: int) -> str:
    from turret.testing import program_of_seed

    return program_of_seed(seed, features_of(parse(None))).source()


# -- the worker -----------------------------------------------------------------------------------------------------


def features_of(options: argparse.Namespace) -> Any:
    from turret.testing import Features

    names = {key: frozenset(filter(None, getattr(options, key).split(","))) for key in ("skip", "families")}
    return Features(max_steps=options.max_steps, **names)


def options_of(options: argparse.Namespace) -> dict[str, Any]:
    pairs = (text.partition("=") for text in options.option)
    return {key: json.loads(value) for key, _, value in pairs}


def work(options: argparse.Namespace) -> int:
    """Read ``[start, end]`` lines, check those seeds, answer with JSON lines."""
    import torch
    from compilers import compiler_of
    from turret.testing.conformance import check_seeds

    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is not for the parent
    compiler, features = compiler_of(options.compiler, options_of(options)), features_of(options)

    def tell(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    for line in sys.stdin:
        start, end = json.loads(line)
        torch.set_num_threads(1 + start // CHUNK % 2)
        for first in range(start, end, options.batch):
            tell(at=first)
            faulthandler.dump_traceback_later(options.timeout * options.batch, exit=True)
            seeds = range(first, min(first + options.batch, end))
            checked = check_seeds(seeds, compiler, features, shrink_attempts=options.shrink)
            faulthandler.cancel_dump_traceback_later()
            operations = collections.Counter(name for program in checked.programs for name in program.ops)
            failures = [
                {"seed": failure.seed, "message": failure.message, "source": failure.program.source()}
                for failure in checked.failures
            ]
            tell(failures=failures, operations=dict(operations), end=seeds.stop >= end)
        torch.compiler.reset()
    return 0


def replay(options: argparse.Namespace) -> int:
    """Check one seed here, print its program and what is wrong with it."""
    from compilers import compiler_of
    from turret.testing import Mismatch, check, program_of_seed

    program = program_of_seed(options.replay, features_of(options))
    print(program.source())
    try:
        check(program, compiler_of(options.compiler, options_of(options)))
    except Mismatch as mismatch:
        print("\n".join(str(difference) for difference in mismatch.differences))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
