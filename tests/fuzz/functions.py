"""Checks many drawn functions of Python, captured by Turret's own capture, against plain execution.

    python -m tests.fuzz.functions --programs 20000 --seed 0 --workers 2 --out functions.jsonl

A program (``function_writer``) is called several times, plainly and captured, with arguments and state that change in
between; results, exceptions, printed text, identity and every object in reach must be the same (``function_worlds``).
Graphs run as they are; one program in ``--compile-every`` has them compiled. Jobs, the record and its file are those of
``run.py``. ``--replay SEED`` checks one seed in this process and prints the program.

One program in ``--data-every`` is of numbers that tensors' data give (``function_data``): it is captured as one graph
(``fullgraph=True``) and called with several data; of these, every other one is compiled. One that is not a single graph
is counted as refused.
"""

from __future__ import annotations

import argparse
import collections
import functools
import logging
import random
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.fuzz.function_capture import Watch, captured, compiled
from tests.fuzz.function_data import data_program_of, without_line
from tests.fuzz.function_data_calls import RaisedAlone, Refused, Stopped, check_data
from tests.fuzz.function_prelude import MARK
from tests.fuzz.function_shrink import shrink
from tests.fuzz.function_worlds import Difference, check
from tests.fuzz.function_writer import program_of
from tests.fuzz.record import Job, Record, add_arguments, drive
from turret.testing.kit.isolation import serve

_SAME = ("batch", "seed", "compile_every", "data_every")
_SECONDS = 60.0
_MOST_REFUSED = 10
"""Lines that a program loses until it is one graph."""
_LATE = "the program takes too long"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, timeout=600.0, batch=20, shrink=400)
    parser.add_argument(
        "--compile-every", type=int, default=0, metavar="N", help="compile the graphs of one in N; 0: none"
    )
    parser.add_argument(
        "--data-every", type=int, default=8, metavar="N", help="one in N is of numbers of data, in one graph; 0: none"
    )
    return parser.parse_args(arguments)


class _OutOfTime(BaseException):
    """A program runs for too long: while it is shrunk it may have lost what ends a loop."""


def _stop(*_: Any) -> None:
    raise _OutOfTime


def fault_of(text: str, seed: int, watch: Watch, *, with_compiler: bool, seconds: float = _SECONDS) -> str | None:
    """What is wrong with a program; None where captured and plain execution agree, or neither comes to an end."""
    compile = functools.partial(compiled if with_compiler else captured, watch=watch)
    fault = _fault_in_time(functools.partial(check, text, seed, compile, exact=not with_compiler), seconds)
    if fault == _LATE:
        plainly = functools.partial(check, text, seed, lambda function: function)
        return None if _fault_in_time(plainly, seconds) == _LATE else fault
    return fault


def fault_of_data(text: str, seed: int, watch: Watch, seconds: float = _SECONDS) -> str | None:
    """What is wrong with a program of numbers of data as one graph.

    One that is none is an event, ``refused``; so is a graph that raises alone, for which its calls run as Python.
    """
    with_compiler = random.Random(f"compiled {seed}").random() < 0.5
    check = functools.partial(check_data, text, seed, with_compiler, watch)
    try:
        return _fault_in_time(check, seconds)
    except (RaisedAlone, Stopped) as raised:
        kind = "graph that raised alone" if isinstance(raised, RaisedAlone) else "graph that a stage stopped"
        watch.events.setdefault(kind, []).append(str(raised))
        try:
            return _fault_in_time(functools.partial(check, on_error="fallback"), seconds)
        except (RaisedAlone, Stopped) as again:
            return f"{type(again).__name__}: {again}"
        except Refused as refused:
            watch.events.setdefault("refused program", []).append(str(refused))
            return None
    except Refused as refused:
        watch.events.setdefault("refused program", []).append(str(refused))
        return None


def data_program(seed: int) -> str:
    """The program of a seed that is one of numbers of data, less the lines for which it is not one graph."""
    text = data_program_of(seed)
    for _ in range(_MOST_REFUSED):
        try:
            _fault_in_time(functools.partial(check_data, text, seed, False, Watch(), calls=1), _SECONDS)
        except (RaisedAlone, Stopped):
            break
        except Refused as refused:
            less = without_line(text, str(refused))
            if less is None:
                break
            text = less
        else:
            break
    return text


def _fault_in_time(checked: Callable[[], None], seconds: float) -> str | None:
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        checked()
    except (Refused, RaisedAlone, Stopped):
        raise
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


def program_and_check(seed: int, options: argparse.Namespace) -> tuple[str, Callable[..., str | None]]:
    """The program of a seed, and the function that finds what is wrong with it."""
    if options.data_every and seed % options.data_every == options.data_every - 1:
        return data_program(seed), fault_of_data
    with_compiler = bool(options.compile_every and seed % options.compile_every == 0)
    return program_of(seed), functools.partial(fault_of, with_compiler=with_compiler)


def examine(seed: int, options: argparse.Namespace, watch: Watch) -> dict[str, Any] | None:
    """The failure of one seed, shrunk; or None."""
    text, fault_of_text = program_and_check(seed, options)
    fault = fault_of_text(text, seed, watch)
    if fault is None:
        return None
    if fault == _LATE:
        return {"seed": seed, "message": fault, "source": text.partition(MARK)[2]}

    def fails(candidate: str) -> bool:
        found = fault_of_text(candidate, seed, Watch(), seconds=5.0)
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


def replay(options: argparse.Namespace) -> int:
    """Check one seed here, print its program and what is wrong with it."""
    text, fault_of_text = program_and_check(options.replay, options)
    watch = Watch()
    fault = fault_of_text(text, options.replay, watch)
    if fault is None:  # a first program loads modules, which hides what circles it leaves
        fault = fault_of_text(text, options.replay, Watch())
    for kind in ("refused program", "graph that raised alone", "graph that a stage stopped"):
        print("".join(f"{kind}: {reason}\n" for reason in watch.events.get(kind, ())), end="")
    print(text.partition(MARK)[2] + "\n" + (fault or "no difference"))
    return 0 if fault is None else 1


def main() -> int:
    def told(record: Record) -> str:
        counts = ", ".join(f"{count} {kind}s" for kind, count in sorted(record.counts.items()))
        return record.summary("functions", counts or "nothing captured")

    options = parse()
    text_of = lambda seed: program_and_check(seed, options)[0].partition(MARK)[2]  # noqa: E731
    record = functools.partial(Record, options, _SAME, lambda job: "\n\n".join(map(text_of, range(*job))))
    return drive(options, record, __spec__.name, work=work, replay=replay, told=told)


if __name__ == "__main__":
    sys.exit(main())
