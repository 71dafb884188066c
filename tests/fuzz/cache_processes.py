"""Processes over one cache folder that are killed at random moments, or that start cold all at once.

    python -m tests.fuzz.cache_processes --kills 100 --seed 0
    python -m tests.fuzz.cache_processes --at-once 8 --rounds 3

Each process is a fork of this one, which has torch loaded and nothing compiled.  It compiles and runs the programs of
``cache_lab`` over the folder and compares them with eager; it must come out right whatever the killed ones left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

_SHORTEST = 0.02
"""Seconds before the first moment at which a process is killed."""


def start(folder: Path, traces_nothing: bool = False) -> int:
    """A process that runs all programs over the folder; it exits with 0 where they are right."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        from tests.core.storage import cache_lab

        watch = cache_lab.run(folder)
        fine = not traces_nothing or (set(watch.stages) == {"runtime"} and not watch.failures)
        status = 0 if fine else 3
        if not fine:
            print(watch.stages, watch.failures, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finished(process: int) -> int:
    """The exit status of a process, when it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kills(count: int, seed: int, folder: Path) -> list[str]:
    """Kill so many processes, each at a moment of its own; after each, another one must be right.  What went wrong."""
    draw, wrong = random.Random(seed), []
    begun = time.monotonic()
    status = finished(start(folder / "whole"))
    longest = time.monotonic() - begun
    if status:
        wrong.append(f"the first process: {status}")
    cache = folder / "killed"
    for number in range(count):
        if draw.random() < 0.3:
            cache = folder / f"killed{number}"  # a cold one; the others find what was left
        process = start(cache)
        time.sleep(draw.uniform(_SHORTEST, longest))
        os.kill(process, signal.SIGKILL)
        finished(process)
        if number % 5 == 4 or number == count - 1:
            for traces_nothing in (False, True):
                status = finished(start(cache, traces_nothing))
                if status:
                    wrong.append(f"after kill {number}, of seed {seed}: {status} (traces nothing: {traces_nothing})")
    return wrong


def at_once(count: int, folder: Path) -> list[str]:
    """Start so many cold processes at once, and one after them.  What went wrong."""
    running = [start(folder) for _ in range(count)]
    statuses = [finished(process) for process in running]
    wrong = [f"process {n} of {count}: {status}" for n, status in enumerate(statuses) if status]
    if status := finished(start(folder, True)):
        wrong.append(f"the one after {count}: {status}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    from tests.core.storage import cache_lab  # noqa: F401 (loads torch before processes are forked)

    with tempfile.TemporaryDirectory() as scratch:
        wrong = kills(options.kills, options.seed, Path(scratch)) if options.kills else []
        for number in range(options.rounds if options.at_once else 0):
            wrong += at_once(options.at_once, Path(scratch, f"round{number}"))
    print("\n".join(wrong) or f"right: {options.kills} kills, {options.rounds} times {options.at_once} at once")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
