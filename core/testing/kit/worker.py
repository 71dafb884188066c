"""The worker of a conformance run: checks items, or tries sources, in a process that may crash and hang.

    python -m turret.testing.kit.worker '{"plugins": ["my_package:Plugin"], "device": "acme", "timeout": 120}'

The argument says what is under test and how (``Subject``, ``Settings``); jobs and answers are JSON (``isolation``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import attrs

from turret.testing.kit.isolation import serve
from turret.testing.kit.workers import PREPARE

LONG = ("prepare", "list", "shrink", "try")
"""Jobs that import what others need, or try many candidates: they have ``PREPARE`` seconds, at least."""


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
        from turret.hooks.devices import HOST
        from turret.testing.kit.levels import Settings
        from turret.testing.kit.subject import Subject

        facts = self._facts
        self.subject = Subject(tuple(facts["plugins"]), facts["device"] or HOST.type, facts["options"])
        self.settings = Settings(facts.get("size", "small"), facts.get("seed", 0), facts.get("counts", {}))
        return self.__dict__[name]

    def do_prepare(self, level: str = "") -> str:
        """Import all that a level needs, so that it is no item's time."""
        if level:
            from turret.testing.kit.levels import LEVELS

            LEVELS[level].prepare()
        return str(self.subject)

    def do_list(self, levels: list[str]) -> dict[str, Any]:
        """The items of levels."""
        from turret.testing.kit.levels import LEVELS

        items = {name: list(LEVELS[name].items(self.subject, self.settings)) for name in levels}
        return {"subject": str(self.subject), "items": items}

    def do_check(self, level: str, item: str) -> dict[str, Any]:
        """The outcome of an item."""
        from turret.testing.kit.levels import LEVELS

        self.subject.reset()
        return attrs.asdict(LEVELS[level].check(item, self.subject, self.settings))

    def do_try(self, source: str) -> str:
        """Run a failure's file in a copy of this process, which has imported all and run nothing.

        The answer is how the copy ended: ``"crash"``, ``"hang"``, or nothing where it did by itself.
        """
        child = os.fork()
        if not child:
            _run_and_exit(source)
        return _how_it_ends(child, self._facts["timeout"])

    def do_shrink(self, level: str, item: str, kind: str, seconds: float) -> str:
        """The smallest file found of an item that ends its process so; eager comes first, and may end this one."""
        from turret.testing.kit.deaths import run_eagerly, shrunk

        run_eagerly(level, item, self.subject, self.settings)
        return shrunk(level, item, kind, self._facts, self.subject, self.settings, seconds)

    def do_fault(self, item: str) -> str:
        """Meet a fault."""
        from turret.testing.kit.levels.faults import meet

        return meet(item, self.subject)


def _run_and_exit(source: str) -> None:
    """In a copy of a process: run a failure's file, and end."""
    try:
        namespace: dict[str, Any] = {"__name__": "failure"}
        exec(compile(source, "<failure>", "exec"), namespace)
        namespace["main"]()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _how_it_ends(child: int, seconds: float) -> str:
    """How a child process ends within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "crash" if os.WIFSIGNALED(status) else ""
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"


def main() -> None:
    facts = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    serve(Handler(facts), lambda job: _time(job, facts["timeout"]))


def _time(job: dict[str, Any], timeout: float) -> float:
    """Seconds for a job: an item's, or more where it is not one item that takes them."""
    return max(timeout, PREPARE) if job["do"] in LONG or job.get("level") == "faults" else timeout


if __name__ == "__main__":
    main()
