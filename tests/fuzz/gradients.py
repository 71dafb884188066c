"""Fuzz what programs ask of autograd in compiled code, in worker processes, against eager.

    python -m tests.fuzz.gradients --programs 20000 --seed 0 --workers 2 --out gradients.jsonl
    python -m tests.fuzz.gradients --replay 4711

Programs are drawn (``gradient_programs``).  Compared are results with what autograd says of them, errors by kind,
gradients of leaves, and leaves after each of three calls.  Exits with 1 where compiled code gives something else.
"""

from __future__ import annotations

import argparse
import functools
import sys
import traceback
import warnings
from typing import Any

import torch

import turret
from tests.fuzz.gradient_programs import Program, difference, draw, shrunk
from tests.fuzz.record import Job, Record, add_arguments, drive
from turret.testing.kit.isolation import serve

_SAME = ("batch", "seed")
_OPTIONS = {"cache": False, "recompile_limit": 64}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, timeout=600.0, batch=20, shrink=20)
    return parser.parse_args()


def examine(program: Program) -> str:
    """What is wrong with a program; empty where nothing is, or eager cannot run it."""
    try:
        return difference(program, dict(_OPTIONS))
    except NameError:  # of a shrunk program
        return ""
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        turret.reset()


def work(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    def handle(job: Job) -> dict[str, Any]:
        failures = []
        for seed in range(*job):
            program = draw(seed)
            if fault := examine(program):
                small = shrunk(program, lambda p: bool(examine(p)), options.shrink)
                failures.append({"seed": seed, "message": examine(small) or fault, "source": small.source})
        return {"failures": failures, "counts": {"programs": job[1] - job[0]}}

    serve(handle, options.timeout)


def replay(options: argparse.Namespace) -> int:
    """Check one seed here, print its program and what is wrong with it."""
    program = draw(options.replay)
    fault = examine(program)
    print(f"{program.source}\n# before: c = {program.before}\n{fault or 'no difference'}")
    return 1 if fault else 0


def main() -> int:
    options = parse()
    record = functools.partial(Record, options, _SAME, lambda job: "\n\n".join(draw(s).source for s in range(*job)))
    return drive(
        options, record, __spec__.name, work=work, replay=replay, told=lambda r: r.summary("gradients", "eager's")
    )


if __name__ == "__main__":
    sys.exit(main())
