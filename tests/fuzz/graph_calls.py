"""Fuzz graph capture: random sequences of calls of recorded functions, on a machine in Python, against eager.

    python -m tests.fuzz.graph_calls --programs 10000 --seed 0 --workers 2 --out graph_calls.jsonl
    python -m tests.fuzz.graph_calls --replay 4711

A program is a seed: a third each with fresh outputs, outputs in the pool, and as before trees.  Exits with 1 where a
sequence gives something else than eager.
"""

from __future__ import annotations

import argparse
import collections
import functools
import random
import sys
import traceback
import warnings
from typing import Any

import torch

from tests.fuzz.record import Job, Record, add_arguments, drive
from tests.plugins.cudagraphs.sequences import Play
from turret.testing.kit.isolation import serve

_SAME = ("batch", "seed")
_OUTPUTS = ("fresh", "pool", "legacy")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, timeout=300.0, batch=100, shrink=0)
    return parser.parse_args()


def examine(seed: int) -> tuple[str | None, collections.Counter[str]]:
    """What is wrong with the sequence of a seed, and what happened in it; the shortest one that fails is told."""
    fault, counts = None, collections.Counter[str]()
    game = Play(random.Random(seed), _OUTPUTS[seed % 3])
    for step in range(40):
        try:
            game.step()
        except Exception:
            fault = f"{game.outputs}, step {step}: {traceback.format_exc(limit=-4)}"
            break
    else:
        counts = game.finish()
    return fault, counts


def source_of(seed: int) -> str:
    game = Play(random.Random(seed), _OUTPUTS[seed % 3])
    return "\n".join(f"{p.name} ({p.role}): {p.steps} -> {p.outputs}" for p in game.programs)


def work(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    def handle(job: Job) -> dict[str, Any]:
        total: collections.Counter[str] = collections.Counter()
        failures = []
        for seed in range(*job):
            fault, counts = examine(seed)
            total += counts
            if fault is not None:
                failures.append({"seed": seed, "message": fault, "source": source_of(seed)})
        return {"failures": failures, "counts": dict(total)}

    serve(handle, options.timeout)


def replay(options: argparse.Namespace) -> int:
    """Check one seed here, print its program and what is wrong with it."""
    fault, _ = examine(options.replay)
    print(f"{source_of(options.replay)}\n{fault or 'no difference'}")
    return 0 if fault is None else 1


def main() -> int:
    def told(record: Record) -> str:
        return record.summary("graph calls", ", ".join(f"{n} {kind}" for kind, n in sorted(record.counts.items())))

    options = parse()
    record = functools.partial(Record, options, _SAME, lambda job: "\n\n".join(map(source_of, range(*job))))
    return drive(options, record, __spec__.name, work=work, replay=replay, told=told)


if __name__ == "__main__":
    sys.exit(main())
