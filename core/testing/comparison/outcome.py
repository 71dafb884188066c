"""Outcomes of a conformance run, and the table of what is right, wrong and eager."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

Status = Literal["right", "eager", "wrong", "error", "crash", "hang", "skipped"]

STATUSES: dict[str, str] = {
    "right": "compiled, and as eager",
    "eager": "as eager, run by eager, with a reason on record",
    "wrong": "not as eager, without an error",
    "error": "raised where eager does not",
    "crash": "ended the process",
    "hang": "gave no answer in time",
    "skipped": "not tried, for a reason",
}
"""Every status with its meaning."""

FAILURES = ("wrong", "error", "crash", "hang")
"""Statuses that are faults."""


@attrs.frozen
class Outcome:
    """What came of one item of a level.

    ``made``: what the operation became (``turret.testing.kit.subject.Observer.made``).  ``source``: Python that shows a
    failure by itself.
    """

    level: str
    item: str
    status: Status
    message: str = ""
    made: str = ""
    source: str = ""

    @property
    def failed(self) -> bool:
        return self.status in FAILURES


@attrs.frozen
class Report:
    """The outcomes of a run, of what, and with which seed."""

    subject: str
    outcomes: tuple[Outcome, ...]
    seed: int = 0

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong; what ran eagerly is right."""
        return not self.failures

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.failed)

    def counts(self) -> dict[str, dict[str, int]]:
        """Items of each status, by level."""
        table: dict[str, dict[str, int]] = {}
        for outcome in self.outcomes:
            row = table.setdefault(outcome.level, dict.fromkeys(STATUSES, 0))
            row[outcome.status] += 1
        return table

    def operations(self) -> dict[str, dict[str, Any]]:
        """By operation of torch's table: its worst status, what it became, and the first message."""
        found: dict[str, dict[str, Any]] = {}
        for outcome in self.outcomes:
            if outcome.level != "ops":
                continue
            name, _, dtype = outcome.item.rpartition(":")
            row = found.setdefault(name, {"status": outcome.status, "made": "", "message": "", "dtypes": {}})
            row["dtypes"][dtype] = outcome.status
            if _RANK[outcome.status] > _RANK[row["status"]]:
                row["status"] = outcome.status
            if outcome.made:
                row["made"] = outcome.made if row["made"] in ("", outcome.made) else "both"
            row["message"] = row["message"] or outcome.message
        return found

    def __str__(self) -> str:
        return "\n".join([self.summary(), *map(_failure_text, self.failures)])

    def summary(self, every: bool = False) -> str:
        """The table, the operations that are not right (all where ``every``), and why items ran eagerly."""
        return "\n".join([table_text(self.counts()), *self._operation_lines(every), *self._eager_lines()])

    def _eager_lines(self) -> list[str]:
        """Reasons why items of other levels ran eagerly, the most frequent first."""
        eager = [o for o in self.outcomes if o.status == "eager" and o.level != "ops"]
        reasons = collections.Counter(_reason(o.message) for o in eager)
        shown = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        lines = [f"  {count:4}  {reason}" for reason, count in shown[:_REASONS]]
        more = [f"        and {len(shown) - _REASONS} more"] if len(shown) > _REASONS else []
        return ["", "ran eagerly, and why:", *lines, *more] if lines else []

    def _operation_lines(self, every: bool = False) -> list[str]:
        operations = self.operations()
        if not operations:
            return []
        made = collections.Counter(row["made"] for row in operations.values() if row["status"] == "right")
        lines = ["", "operations that are right became: " + (_listed(made) or "none")]
        shown = {name: row for name, row in operations.items() if every or row["status"] not in ("right", "skipped")}
        width = max(map(len, shown), default=0)
        for name, row in sorted(shown.items()):
            line = _reason(row["message"]) or row["made"]
            lines.append(f"  {name:{width}}  {row['status']:7}  {line}".rstrip())
        return lines

    def as_json(self) -> str:
        """Everything, for machines: counts by level, operations, and each item without its source."""
        items = [{k: v for k, v in attrs.asdict(o).items() if k != "source"} for o in self.outcomes]
        facts = {"subject": self.subject, "seed": self.seed, "passed": self.passed, "versions": _versions()}
        return json.dumps({**facts, "levels": self.counts(), "operations": self.operations(), "items": items}, indent=1)


_RANK = {name: rank for rank, name in enumerate(("skipped", "right", "eager", "error", "wrong", "hang", "crash"))}


def table_text(counts: Mapping[str, Mapping[str, int]]) -> str:
    """A line a level, a column a status."""
    lines = ["level     " + "".join(f"{status:>9}" for status in STATUSES)]
    for level, row in counts.items():
        lines.append(f"{level:10}" + "".join(f"{row[status]:9}" for status in STATUSES))
    total = {status: sum(row[status] for row in counts.values()) for status in STATUSES}
    lines.append("all       " + "".join(f"{total[status]:9}" for status in STATUSES))
    return "\n".join(lines)


_REASONS = 12
"""Reasons that are shown."""


def _reason(message: str) -> str:
    """What a message says at last: the stages that it came through are the same for all."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    return line.rpartition("UnsupportedError: ")[2][:110]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _failure_text(outcome: Outcome) -> str:
    rule = "-" * 100
    return f"{rule}\n{outcome.level}[{outcome.item}] {outcome.status}: {outcome.message}\n\n{outcome.source}".rstrip()


def worst(outcomes: Iterable[Outcome]) -> Status:
    """The worst status of some outcomes."""
    return max((outcome.status for outcome in outcomes), key=_RANK.__getitem__, default="right")


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("turret", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
