"""Cold compile time against the number of blocks: of blocks that are alike, and of blocks that differ in every width.

    python -m tests.benchmarks.cold_growth --systems inductor,turret --blocks 4,16,64 --json growth.json

Each figure is a fresh process with empty caches (``cold.py``); a slope is the least-squares line through a system's
seconds, per block.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import attrs

from tests.benchmarks import cold, measure, models


@attrs.frozen
class Growth:
    """Seconds of the first step, cold, by the number of blocks; those that failed are left out."""

    model: str
    kind: str
    system: str
    seconds: dict[int, float]

    @property
    def slope(self) -> float:
        """Seconds a block; NaN of fewer than two numbers of blocks."""
        if len(self.seconds) < 2:
            return float("nan")
        return statistics.linear_regression(list(self.seconds), list(self.seconds.values())).slope


def growths(results: list[cold.ColdResult]) -> list[Growth]:
    """Results of models named ``NAME-BLOCKS``, by model, kind and system."""
    found: dict[tuple[str, str, str], Growth] = {}
    for result in results:
        model, _, count = result.model.partition("-")
        key = (model, result.kind, result.system)
        growth = found.setdefault(key, Growth(*key, {}))
        if not result.failure:
            growth.seconds[int(count)] = result.cold_seconds
    return list(found.values())


def report(results: list[cold.ColdResult], counts: list[int]) -> str:
    """A line for each model, kind and system."""
    rows = [
        [f"{g.model} {g.kind} {g.system}", *(g.seconds.get(n, float("nan")) for n in counts), g.slope]
        for g in growths(results)
    ]
    return measure.table(["cold compile, s", *(f"{n} blocks" for n in counts), "s a block"], rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="inductor,turret")
    parser.add_argument("--models", default=",".join(models.BLOCKS))
    parser.add_argument("--blocks", default="4,16,64")
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    counts = [int(n) for n in options.blocks.split(",")]
    cases = [(f"{m}-{n}", k) for m in options.models.split(",") for k in options.kinds.split(",") for n in counts]
    results = cold.measure_all(cases, options.systems.split(","), options)
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(r) for r in results], indent=1))
    print(report(results, counts))
    return 1 if any(r.failure for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
