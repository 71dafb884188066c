"""The conformance kit as a plugin of pytest: collects the levels for plugins under test, ends with a table.

    pytest -p turret.testing.pytest_plugin --turret-plugin my_package:Plugin --turret-device acme

Where Turret is installed ``-p`` is not needed.  Without ``--turret-plugin`` nothing is collected, and torch is not
imported.  Items are checked in a worker process, which may crash and hang; this process imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LEVELS = ("cases", "ops", "programs", "kernels", "models", "faults")
"""All levels, in the order in which they are run."""

_OUTCOME = "turret_outcome"
_ASKED_FOR = "turret"
"""Names of a report's property, and of the collector that all items are under."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turret", "conformance of Turret's plugins")
    add = group.addoption
    add("--turret-plugin", action="append", default=[], metavar="MODULE:OBJECT", help="a plugin under test; repeatable")
    add("--turret-device", default="", metavar="TYPE", help="torch's name of the device of tensors, if not the host's")
    add("--turret-level", default=",".join(LEVELS), metavar="NAMES", help=f"levels, with commas: {', '.join(LEVELS)}")
    add("--turret-size", default="small", choices=("small", "medium", "large"), help="how much of each level")
    add("--turret-count", action="append", default=[], metavar="LEVEL=N", help="items of a level, over --turret-size")
    add("--turret-seed", type=int, default=0, help="moves all that is drawn")
    add("--turret-option", action="append", default=[], metavar="KEY=JSON", help="an option of turret.compile")
    add("--turret-timeout", type=float, default=120.0, metavar="SECONDS", help="for one item")
    add("--turret-shrink", type=float, default=60.0, metavar="SECONDS", help="for making a crash or a hang smaller")
    add("--turret-json", metavar="FILE", help="write the outcome of every item there")
    add("--turret-failures", default="turret_failures", metavar="FOLDER", help="where files that show failures go")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("turret_plugin"):
        config.pluginmanager.register(Kit(config), "turret-conformance")


class Kit:
    """One conformance run: its items, its worker, and what came of them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.levels = _levels(config.getoption("turret_level"))
        self.facts = {
            "plugins": config.getoption("turret_plugin"),
            "device": config.getoption("turret_device"),
            "size": config.getoption("turret_size"),
            "seed": config.getoption("turret_seed"),
            "counts": _counts(config.getoption("turret_count")),
            "options": _pairs(config.getoption("turret_option"), "--turret-option", "KEY=JSON", json.loads),
            "timeout": config.getoption("turret_timeout"),
        }
        self.subject = ""
        self.outcomes: list[dict[str, Any]] = []
        self._worker: Any = None

    @property
    def worker(self) -> Any:
        """The worker process, started when first asked."""
        if self._worker is None:
            from turret.testing.kit.workers import worker_for

            self._worker = worker_for(self.facts, self.facts["timeout"])
        return self._worker

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Collect no tests but the kit's, unless some were asked for by name."""
        if self.config.args_source is not pytest.Config.ArgsSource.ARGS:
            self.config.args = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        try:
            listed = _answer(self.worker.ask({"do": "list", "levels": self.levels}))
        except Failed as failure:
            raise pytest.UsageError(str(failure)) from None
        self.subject = listed["subject"]
        root = Root.from_parent(session, name=_ASKED_FOR, nodeid=_ASKED_FOR)
        for level, names in listed["items"].items():
            parent = Root.from_parent(root, name=level)
            items += [KitItem.from_parent(parent, name=name, kit=self, level=level) for name in names]

    def outcome(self, level: str, item: str) -> dict[str, Any]:
        """What came of an item; one that ends the worker is shrunk in another."""
        from turret.testing.kit.isolation import Death

        self.worker.ask({"do": "prepare", "level": level})  # what a new worker imports is no time of the item's
        answer = self.worker.ask({"do": "check", "level": level, "item": item})
        if not isinstance(answer, Death):
            return _answer(answer)
        source = self._shrunk(level, item, answer.kind)
        if isinstance(source, Death):
            told = f"so it goes in eager on {self.facts['device'] or 'the host'}: {source.reason}"
            return {"level": level, "item": item, "status": "skipped", "message": told}
        told = f"{answer.reason}\n{answer.printed.strip()}"
        return {"level": level, "item": item, "status": answer.kind, "message": told, "source": source}

    def _shrunk(self, level: str, item: str, kind: str) -> Any:
        """The file of an item that ends its process, or the death of one that ran it in eager."""
        from turret.testing.kit.workers import worker_for

        worker = worker_for(self.facts, self.facts["timeout"])
        seconds = self.config.getoption("turret_shrink")
        try:
            return worker.ask({"do": "shrink", "level": level, "item": item, "kind": kind, "seconds": seconds})
        finally:
            worker.close()

    def write(self, outcome: dict[str, Any]) -> str:
        """Write the file that shows a failure; its path."""
        folder = Path(self.config.getoption("turret_failures"))
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "_", f"{outcome['level']}_{outcome['item']}").strip("_")
        path = folder / f"failure_{name}.py"
        path.write_text(outcome["source"])
        return str(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of an item, which may have run in another process (pytest-xdist)."""
        if report.when == "call" or (report.when == "setup" and report.skipped):
            found = (value for name, value in report.user_properties if name == _OUTCOME)
            self.outcomes += [value for value in found if isinstance(value, dict)]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        outcome = dict(report.user_properties).get(_OUTCOME)
        if report.when == "call" and isinstance(outcome, dict) and outcome["status"] == "eager":
            return "passed", "e", "EAGER"
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.outcomes:
            return
        report = self._report()
        terminalreporter.section(f"turret: {report.subject}")
        terminalreporter.write_line(report.summary(every=self.config.get_verbosity() > 0))
        if target := self.config.getoption("turret_json"):
            Path(target).write_text(report.as_json())

    def _report(self) -> Any:
        from turret.testing.comparison.outcome import Outcome, Report

        names = {field.name for field in Outcome.__attrs_attrs__}
        made = (Outcome(**{k: v for k, v in found.items() if k in names}) for found in self.outcomes)
        subject = self.outcomes[0].get("subject", "")
        return Report(subject, tuple(made), self.facts["seed"])

    def pytest_unconfigure(self) -> None:
        if self._worker is not None:
            self._worker.close()


class Root(pytest.Collector):
    """What items are under: all, and each level."""

    def collect(self) -> Iterator[pytest.Item]:
        return iter(())


class KitItem(pytest.Item):
    """One item of a level."""

    def __init__(self, *, kit: Kit, level: str, **given: Any) -> None:
        super().__init__(**given)
        self.kit, self.level = kit, level

    def runtest(self) -> None:
        outcome = {**self.kit.outcome(self.level, self.name), "subject": self.kit.subject}
        file = self.kit.write(outcome) if outcome.get("source") else ""
        kept = {key: value for key, value in outcome.items() if key != "source"}
        self.user_properties.append((_OUTCOME, kept))
        if outcome["status"] == "skipped":
            pytest.skip(outcome["message"])
        if outcome["status"] not in ("right", "eager"):
            shown = f"python {file}" if file else "no file: it could not be made smaller, or not again"
            raise Failed(f"{outcome['status']}: {outcome['message']}\n{shown}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Failed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.level}[{self.name}]"


class Failed(Exception):
    """An item that is not as eager, or did not come back."""


def _answer(answer: Any) -> dict[str, Any]:
    """A worker's answer; raises where the worker died, or its plugin or the kit failed."""
    if not isinstance(answer, dict):
        raise Failed(f"a {answer.kind} before an item was given: {answer.reason}\n{answer.printed}")
    if "failed" in answer:
        raise Failed(f"{answer['failed']}\n{answer['traceback']}")
    return answer


def _levels(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in LEVELS]
    if unknown or not names:
        raise pytest.UsageError(f"--turret-level {text}: expected some of {', '.join(LEVELS)}, with commas")
    return names


def _counts(texts: list[str]) -> dict[str, int]:
    found = _pairs(texts, "--turret-count", "LEVEL=N", int)
    if unknown := [name for name in found if name not in LEVELS]:
        raise pytest.UsageError(f"--turret-count {unknown[0]}: expected one of {', '.join(LEVELS)}")
    return found


def _pairs(texts: list[str], option: str, form: str, read: Any) -> dict[str, Any]:
    """``KEY=VALUE`` texts as a dictionary."""
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            found[key] = read(value)
        except ValueError:
            raise pytest.UsageError(f"{option} {text}: expected {form}") from None
    return found
