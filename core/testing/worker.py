"""The worker of a conformance run: checks items, or tries sources, in a process that may crash and hang.

    python -m turret.testing.worker '{"plugins": ["my_package:Plugin"], "device": "cpu", "timeout": 120}'

The argument says what is under test and how (``Subject``, ``Settings``); jobs and answers are JSON (``isolation``).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from typing import Any

import attrs

from turret.testing.isolation import Worker, serve


class Handler:
    """Answers jobs; the subject is made, and torch imported, when the first one comes."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def __call__(self, job: dict[str, Any]) -> Any:
        """The answer to a job, or ``{"failed": traceback}`` where the kit or the plugin's import fails."""
        try:
            return getattr(self, f"do_{job.pop('do')}")(**job)
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}

    def __getattr__(self, name: str) -> Any:
        if name not in ("subject", "settings"):
            raise AttributeError(name)
        from turret.testing.levels import Settings
        from turret.testing.subject import Subject

        facts = self._facts
        self.subject = Subject(tuple(facts["plugins"]), facts["device"], facts["options"])
        self.settings = Settings(facts.get("size", "small"), facts.get("seed", 0), facts.get("counts", {}))
        return self.__dict__[name]

    def do_nothing(self) -> str:
        """Be ready."""
        return str(self.subject)

    def do_list(self, levels: list[str]) -> dict[str, Any]:
        """The items of levels."""
        from turret.testing.levels import LEVELS

        items = {name: list(LEVELS[name].items(self.subject, self.settings)) for name in levels}
        return {"subject": str(self.subject), "items": items}

    def do_check(self, level: str, item: str) -> dict[str, Any]:
        """The outcome of an item."""
        from turret.testing.levels import LEVELS

        self.subject.reset()
        return attrs.asdict(LEVELS[level].check(item, self.subject, self.settings))

    def do_eager(self, level: str, item: str) -> str:
        """Run an item without compiling anything: whether eager itself ends the process."""
        from turret.testing.levels import LEVELS
        from turret.testing.levels.level import symptom_of

        kit = LEVELS[level]
        if kit.has_eager:
            for candidate in kit.candidates(item, self.subject, self.settings):
                symptom_of(lambda candidate=candidate: kit.try_out(candidate, lambda f: f, self.subject))
        return ""

    def do_try(self, source: str) -> str:
        """Run a failure's file; what it raises is the answer."""
        self.subject.reset()
        namespace: dict[str, Any] = {"__name__": "failure"}
        exec(compile(source, "<failure>", "exec"), namespace)
        try:
            namespace["main"]()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def do_shrink(self, level: str, item: str, kind: str, seconds: float) -> str:
        """The smallest file found of an item that ends its process in this way."""
        from turret.testing.deaths import shrunk

        return shrunk(level, item, kind, self._facts, self.subject, self.settings, seconds)

    def do_fault(self, item: str) -> str:
        """Meet a fault."""
        from turret.testing.levels.faults import meet

        return meet(item, self.subject)


def worker_for(facts: dict[str, Any], timeout: float) -> Worker:
    """A worker for what is under test, with this process's import path; ``timeout``: seconds for a job."""
    command = [sys.executable, "-m", "turret.testing.worker", json.dumps({**facts, "timeout": timeout})]
    return Worker(command, timeout + 30, {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def main() -> None:
    facts = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    serve(Handler(facts), facts["timeout"])


if __name__ == "__main__":
    main()
