"""Runs torch's table of operations through a compiler and compares with eager, forward and backward.

    python -m tests.op_db.run --compiler turret --workers 2 --out op_db.jsonl
    python -m tests.op_db.run --compiler turret --only '^nn.functional.*pool'

Each operation at float32 and at one other dtype, its first ``--samples`` samples, in worker processes: a crash or a
hang costs one case and is reported as such.  The output file has a line a case, and a run with the same file goes on
where the last one stopped (``--retry`` does those again that were not right).
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.op_db.opinfo_check import RIGHT, Subject, check_case
from turret.testing.corpus.op_table import cases
from turret.testing.kit.isolation import Death, run_jobs, serve


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="turret", choices=("turret", "inductor", "aot_eager", "eager"))
    parser.add_argument("--option", action="append", default=[], metavar="KEY=JSON", help="an option of the compiler")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols from the first call on")
    parser.add_argument(
        "--derived", action="store_true", help="sizes are computed, and are 0 and 1, too; --dynamic with it"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--samples", type=int, default=2, help="samples of each operation and dtype")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases, such as '^add:float32'")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one case")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--retry", action="store_true", help="do cases again that were not right")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# -- the worker -----------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = {case.id: case for case in cases(options.device)}
    pairs = (text.partition("=") for text in options.option)
    subject = Subject(
        options.compiler, {key: json.loads(value) for key, _, value in pairs}, options.dynamic or options.derived
    )
    serve(
        lambda job: check_case(table[job], subject, options.samples, options.forward, options.derived), options.timeout
    )


# -- the driver -----------------------------------------------------------------------------------------------------


class Record:
    """Outcomes by case, in memory and in the output file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out: Path | None = options.out
        self.outcomes: dict[str, dict[str, Any]] = {}
        if self.out and self.out.exists():
            for line in self.out.read_text().splitlines():
                outcome = json.loads(line)
                if not options.retry or outcome["status"] in RIGHT:
                    self.outcomes[outcome["case"]] = outcome

    def add(self, case: str, answer: dict[str, Any]) -> None:
        outcome = {"case": case, **answer}
        self.outcomes[case] = outcome
        if self.out:
            with self.out.open("a") as file:
                file.write(json.dumps(outcome) + "\n")
        if answer["status"] not in RIGHT:
            print(f"{case}: {answer['status']}: {answer['message']}", flush=True)
        if len(self.outcomes) % 100 == 0:
            print(f"{len(self.outcomes)} cases", file=sys.stderr, flush=True)

    def add_death(self, case: str, death: Death) -> None:
        self.add(case, {"status": "died", "message": death.reason})


def summary(outcomes: dict[str, dict[str, Any]]) -> str:
    """Counts of outcomes by dtype, of what operations become, and the externs met most."""
    by_dtype: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    externs: collections.Counter[str] = collections.Counter()
    made: dict[str, set[str]] = collections.defaultdict(set)
    for name, outcome in outcomes.items():
        op, _, dtype = name.rpartition(":")
        by_dtype[dtype][outcome["status"]] += 1
        externs.update(outcome.get("externs", {}).keys())
        if outcome["status"] == "ok" and outcome.get("made"):
            made[op].add(outcome["made"])
    statuses = sorted({status for counts in by_dtype.values() for status in counts})
    lines = ["dtype".ljust(12) + "".join(status.rjust(14) for status in statuses)]
    for dtype, counts in by_dtype.items():
        lines.append(dtype.ljust(12) + "".join(str(counts[status]).rjust(14) for status in statuses))
    total = collections.Counter(outcome["status"] for outcome in outcomes.values())
    lines.append("all".ljust(12) + "".join(str(total[status]).rjust(14) for status in statuses))
    if made:
        kinds = collections.Counter("both" if len(kinds) > 1 else next(iter(kinds)) for kinds in made.values())
        lines.append("operations become: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
        lines.append("externs met most: " + ", ".join(f"{name} ({count})" for name, count in externs.most_common(15)))
    for name, outcome in sorted(outcomes.items()):
        if outcome["status"] not in RIGHT:
            lines.append(f"  {name}: {outcome['status']}: {outcome['message'].splitlines()[0][:160]}")
    return "\n".join(lines)


def main() -> int:
    options = parse()
    if options.worker:
        work(options)
        return 0
    record = Record(options)
    wanted = [case.id for case in cases(options.device) if re.search(options.only, case.id)]

    def jobs() -> Iterator[str]:
        return (case for case in wanted if case not in record.outcomes)

    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--worker"]
    run_jobs(command, jobs(), record.add, record.add_death, workers=options.workers)
    outcomes = {case: record.outcomes[case] for case in wanted}
    print(summary(outcomes))
    return 0 if all(outcome["status"] in RIGHT for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
