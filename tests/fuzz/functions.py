"""Checks many drawn functions of Python, captured by Turret's own capture, against plain execution.

    python -m tests.fuzz.functions --programs 20000 --seed 0 --workers 2 --out functions.jsonl

A program (``function_writer``) is called several times, plainly and captured, with arguments and state that change in
between; results, exceptions, printed text, identity and every object in reach must be the same (``function_worlds``).
Graphs run as they are; one program in ``--compile-every`` has them compiled. Jobs, the record and its file are those of
``run.py``. ``--replay SEED`` checks one seed in this process and prints the program.
"""

from __future__ import annotations

import argparse
import collections
import functools
import logging
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.fuzz.function_capture import Watch, captured, compiled
from tests.fuzz.function_prelude import MARK
from tests.fuzz.function_shrink import shrink
from tests.fuzz.function_worlds import Difference, check
from tests.fuzz.function_writer import program_of
from tests.fuzz.record import Job, Record, add_arguments
from turret.testing.kit.isolation import serve

_SAME = ("batch", "seed", "compile_every")
_SECONDS = 60.0
_LATE = "the program takes too long"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, timeout=600.0, batch=20, shrink=400)
    parser.add_argument(
        "--compile-every", type=int, default=0, metavar="N", help="compile the graphs of one in N; 0: none"
    )
    return parser.parse_args(arguments)


class _OutOfTime(BaseException):
    """A program runs for too long: while it is shrunk it may have lost what ends a loop."""


def _stop(*_: Any) -> None:
    raise _OutOfTime


def fault_of(text: str, seed: int, watch: Watch, *, with_compiler: bool, seconds: float = _SECONDS) -> str | None:
    """What is wrong with a program; None where captured and plain execution agree, or neither comes to an end."""
    compile = functools.partial(compiled if with_compiler else captured, watch=watch)
    fault = _fault_in_time(text, seed, compile, not with_compiler, seconds)
    if fault == _LATE and _fault_in_time(text, seed, lambda function: function, True, seconds) == _LATE:
        return None
    return fault


def _fault_in_time(
    text: str, seed: int, compile: Callable[[Callable], Callable], exact: bool, seconds: float
) -> str | None:
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        check(text, seed, compile, exact=exact)
    except Difference as difference:
        return str(difference)
    except _OutOfTime:
        return _LATE
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def kind_of(fault: str | None) -> str:
    """A fault without its numbers and names, so that a smaller program is one with the same fault."""
    return re.sub(r"\d+|'[^']*'", "", (fault or "").split(" is not ")[0])[:60]


def examine(seed: int, options: argparse.Namespace, watch: Watch) -> dict[str, Any] | None:
    """The failure of one seed, shrunk; or None."""
    text, with_compiler = program_of(seed), bool(options.compile_every and seed % options.compile_every == 0)
    fault = fault_of(text, seed, watch, with_compiler=with_compiler)
    if fault is None:
        return None
    if fault == _LATE:
        return {"seed": seed, "message": fault, "source": text.partition(MARK)[2]}

    def fails(candidate: str) -> bool:
        found = fault_of(candidate, seed, Watch(), with_compiler=with_compiler, seconds=5.0)
        return kind_of(found) == kind_of(fault)

    small = shrink(text, fails, options.shrink)
    return {"seed": seed, "message": fault, "source": small.partition(MARK)[2]}


def work(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # errors on fake tensors are part of what is drawn

    def handle(job: Job) -> dict[str, Any]:
        counts: collections.Counter[str] = collections.Counter()
        failures = []
        for seed in range(*job):
            watch = Watch()
            found = examine(seed, options, watch)
            if found is not None:
                failures.append(found)
            counts.update({kind: len(messages) for kind, messages in watch.events.items()})
        return {"failures": failures, "counts": dict(counts)}

    serve(handle, options.timeout)


def main() -> int:
    options = parse()
    if options.worker:
        work(options)
        return 0
    if options.replay is not None:
        text = program_of(options.replay)
        every = options.compile_every
        fault = fault_of(text, options.replay, Watch(), with_compiler=bool(every and options.replay % every == 0))
        print(text.partition(MARK)[2] + "\n" + (fault or "no difference"))
        return 0 if fault is None else 1
    record = Record(options, _SAME, lambda job: "\n\n".join(program_of(s).partition(MARK)[2] for s in range(*job)))
    record.run(__spec__.name)
    counts = ", ".join(f"{count} {kind}s" for kind, count in sorted(record.counts.items()))
    print(record.summary("functions", counts or "nothing captured"))
    return 0 if record.complete else 1


if __name__ == "__main__":
    sys.exit(main())
