"""Failures that end their process: shrunk by running the file of each candidate in copies of a worker."""

from __future__ import annotations

import functools
import time
from typing import Any

from turret.testing.kit.levels import LEVELS, Settings, file_text
from turret.testing.kit.levels.level import symptom_of
from turret.testing.kit.subject import Subject
from turret.testing.kit.workers import worker_for

HANG_TIME = 10.0
"""Seconds after which a candidate counts as one that hangs, where the item did."""


def run_eagerly(level: str, item: str, subject: Subject, settings: Settings) -> None:
    """Run an item without compiling anything: the process may not survive it."""
    if LEVELS[level].has_eager:
        for candidate in LEVELS[level].candidates(item, subject, settings):
            symptom_of(functools.partial(LEVELS[level].try_out, candidate, lambda function: function, subject))


def shrunk(
    level: str, item: str, kind: str, facts: dict[str, Any], subject: Subject, settings: Settings, seconds: float
) -> str:
    """The smallest file that was found, within some seconds, to end a process as the item did; nothing if none did."""
    kit = LEVELS[level]
    timeout = min(facts["timeout"], HANG_TIME) if kind == "hang" else facts["timeout"]
    worker = worker_for(facts, timeout)
    worker.ask({"do": "prepare", "level": level})
    end = time.monotonic() + seconds

    def text(candidate: Any, message: str = f"a {kind}") -> str:
        return file_text(kit.source(candidate), subject, f"{level} {item}", message)

    def dies(candidate: Any) -> bool:
        if time.monotonic() > end:
            return False
        return worker.ask({"do": "try", "source": text(candidate)}) == kind

    try:
        for candidate in kit.candidates(item, subject, settings):
            if dies(candidate):
                return text(kit.shrink(candidate, dies, settings.shrink_attempts))
    finally:
        worker.close()
    return ""
