"""Checks many drawn programs against eager, in worker processes, and records seeds and failures.

    python -m tests.fuzz.run --programs 20000 --seed 0 --workers 2 --compiler turret --out fuzz.jsonl

Every job of ``--batch`` seeds is a line of the output file, and a run with the same file and arguments goes
on where the last one stopped. A worker that dies or hangs costs the programs it was on, which are recorded as
a failure. Kernels check their accesses (``check_bounds``), compiled with ``--flags``: not optimised, which halves what
a program takes; one job in ``--unchecked-every`` runs once more as users run it, optimised, unchecked, with the disk
cache. An error, or a wrong alias, where torch.compile's own tracing and partitioning end in one too (capture is
shared, and so is the saving of inputs that the program then writes to) is counted apart, as ``shared``. A failing
program is shrunk and printed as runnable source. ``--replay SEED`` checks one seed in this process.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import sys
from typing import Any

from tests.fuzz.compilers import MAKE_KERNELS, NAMES, compiler_of
from tests.fuzz.record import Job, Record, add_arguments, drive
from turret.testing.kit.isolation import serve

_SAME = ("compiler", "option", "skip", "families", "max_steps", "batch", "random", "seed", "unchecked_every", "flags")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, timeout=300.0, batch=1, shrink=120)
    parser.add_argument("--compiler", default="turret", choices=NAMES)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=JSON", help="an option of the compiler")
    parser.add_argument("--skip", default="", help="operations to leave out, with commas")
    parser.add_argument("--families", default="", help="families of operations to draw from, with commas")
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument(
        "--unchecked-every",
        type=int,
        default=4,
        metavar="N",
        help="one job in N runs again without check_bounds, and without --flags; 0: none",
    )
    parser.add_argument("--flags", default="-O0", help="further flags of the C++ compiler for kernels that are checked")
    parser.add_argument("--random", action="store_true", help="draw dropout and the like as well")
    return parser.parse_args(arguments)


def features_of(options: argparse.Namespace) -> Any:
    from turret.testing import Features

    names = {key: frozenset(filter(None, getattr(options, key).split(","))) for key in ("skip", "families")}
    return Features(max_steps=options.max_steps, random=options.random, **names)


def compilers_under_test(options: argparse.Namespace) -> list[Any]:
    """The compiler with checks, quickly compiled, and as users have it; of those without kernels of ours, one."""
    pairs = (text.partition("=") for text in options.option)
    chosen = {key: json.loads(value) for key, _, value in pairs}
    if options.compiler not in MAKE_KERNELS:
        return [compiler_of(options.compiler, chosen)]
    quick = {"cpp_flags": options.flags, "cache": False} | chosen
    return [compiler_of(options.compiler, each) for each in (quick, chosen | {"check_bounds": False})]


def source_of(options: argparse.Namespace, job: Job) -> str:
    """Source of the programs of a job."""
    from turret.testing import program_of_seed

    return "\n\n".join(program_of_seed(seed, features_of(options)).source() for seed in range(*job))


def work(options: argparse.Namespace) -> None:
    """Check the seeds of each job; threads alternate between one and two, fixed by the seed."""
    import torch

    from turret.testing.kit.levels.programs import check_seeds

    (compiler, *as_used), features = compilers_under_test(options), features_of(options)
    every, jobs = options.unchecked_every, 0

    def handle(job: Job) -> dict[str, Any]:
        nonlocal jobs
        jobs += 1
        if jobs % 50 == 0:
            torch.compiler.reset()
        torch.set_num_threads(1 + job[0] // 10 % 2)
        checked = check_seeds(range(*job), compiler, features, shrink_attempts=options.shrink)
        found_here = list(checked.failures)
        if as_used and every and job[0] // options.batch % every == 0 and not found_here:
            found_here += check_seeds(range(*job), as_used[0], features, shrink_attempts=options.shrink).failures
        failures, shared = [], []
        for f in found_here:
            found = {"seed": f.seed, "message": f.message, "source": f.program.source()}
            (shared if _fails_in_torch(f.program, f.message) else failures).append(found)
        operations = collections.Counter(name for program in checked.programs for name in program.ops)
        return {"failures": failures, "shared": shared, "counts": dict(operations)}

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
        for compiler in compilers_under_test(options):
            check(program, compiler)
    except Mismatch as mismatch:
        print("\n".join(str(difference) for difference in mismatch.differences))
        return 1
    return 0


def main() -> int:
    def told(record: Record) -> str:
        seeds = ", ".join(map(str, record.shared)) or "none"
        shared = f"{len(record.shared)} errors shared with torch.compile (seeds: {seeds})"
        return record.summary(options.compiler, f"{shared}, {len(record.counts)} operations")

    options = parse()
    record = functools.partial(Record, options, _SAME, functools.partial(source_of, options))
    return drive(options, record, __spec__.name, work=work, replay=replay, told=told)


if __name__ == "__main__":
    sys.exit(main())
