"""Checks that compiled code keeps what must hold exactly, in worker processes, and records what it does not.

    python -m tests.fuzz.relations --programs 20000 --seed 0 --workers 2 --out relations.jsonl
    python -m tests.fuzz.relations --kernels triton --programs 500 --out relations_triton.jsonl
    python -m tests.fuzz.relations --replay 4711

Comparisons with eager leave room for rounding, and errors hide in it: equal elements whose results differ by where
they lie, a sine beyond 1, ``a * b - b * a`` that is not 0, a maximum that equals no element.  Programs and claims are
drawn (``relation_programs``, ``relation_claims``), and a relation is demanded where eager keeps it, or
docs/codegen.md promises it (``relation_checks``).  ``--kernels triton`` interprets kernels, of fewer elements.
"""

from __future__ import annotations

import argparse
import collections
import functools
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

import turret
from tests.fuzz.record import Job, Record, add_arguments, drive
from tests.fuzz.relation_checks import Broken, Checker, Compile, shrunk
from tests.fuzz.relation_programs import Program, draw
from turret.testing.kit.isolation import serve

_SAME = ("batch", "seed", "kernels")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, timeout=600.0, batch=10, shrink=40)
    parser.add_argument("--kernels", default="native", choices=("native", "triton"))
    return parser.parse_args(arguments)


def compile_of(kernels: str) -> Compile:
    """What compiles the programs: as users do, without the disk cache, or with interpreted kernels."""
    plugins: Callable[[], list[Any]] = list
    if kernels == "triton":
        from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen

        plugins = lambda: [InterpretedCodegen()]  # noqa: E731

    def compile_with(function: Callable, dynamic: bool, whole: bool) -> Callable:
        options = {"on_error": "raise", "cache": False}
        return turret.compile(function, fullgraph=whole, dynamic=dynamic, options=options, plugins=plugins())

    return compile_with


def examine(program: Program, compile_with: Compile) -> tuple[list[Broken], dict[str, int]]:
    """What is broken of a program's relations, and how many of each kind were asked."""
    try:
        checker = Checker(program, compile_with)
        return checker.check(), checker.asked
    except Exception:
        return [Broken("runs", traceback.format_exc(limit=-6))], {}


def work(options: argparse.Namespace) -> None:
    """Check the seeds of each job; threads alternate between one and two, fixed by the seed."""
    warnings.simplefilter("ignore")
    compile_with = compile_of(options.kernels)

    def handle(job: Job) -> dict[str, Any]:
        total: collections.Counter[str] = collections.Counter()
        failures = []
        for seed in range(*job):
            torch.set_num_threads(1 + seed % 2)
            program = draw(seed, options.kernels != "native")
            broken, asked = examine(program, compile_with)
            total.update(asked)
            if broken:
                first = broken[0]
                small = shrunk(program, first.relation, compile_with, options.shrink)
                told = [f"{b.relation}\n    {b.detail}" for b in broken]
                failures.append({"seed": seed, "message": "\n".join(told), "source": small.describe()})
        torch.compiler.reset()
        return {"failures": failures, "counts": dict(total)}

    serve(handle, options.timeout)


def _source_of(options: argparse.Namespace, job: Job) -> str:
    return "\n\n".join(draw(seed, options.kernels != "native").describe() for seed in range(*job))


def replay(options: argparse.Namespace) -> int:
    """Check one seed here, print its program and what is wrong with it."""
    torch.set_num_threads(1 + options.replay % 2)
    program = draw(options.replay, options.kernels != "native")
    print(program.describe())
    broken, _ = examine(program, compile_of(options.kernels))
    for each in broken:
        print(f"{each.relation}\n    {each.detail}")
    return 1 if broken else 0


def main() -> int:
    def told(record: Record) -> str:
        asked = ", ".join(f"{n} {kind}" for kind, n in sorted(record.counts.items()))
        return record.summary("relations", f"asked: {asked}")

    options = parse()
    record = functools.partial(Record, options, _SAME, functools.partial(_source_of, options))
    return drive(options, record, __spec__.name, work=work, replay=replay, told=told)


if __name__ == "__main__":
    sys.exit(main())
