"""Failures that end their process: shrunk by running the file of each candidate in a worker."""

from __future__ import annotations

import time
from typing import Any

from turret.testing.isolation import Death
from turret.testing.levels import LEVELS, Settings, file_text
from turret.testing.subject import Subject
from turret.testing.worker import worker_for

HANG_TIME = 10.0
"""Seconds after which a candidate counts as one that hangs, where the item did."""


def shrunk(
    level: str, item: str, kind: str, facts: dict[str, Any], subject: Subject, settings: Settings, seconds: float
) -> str:
    """The smallest file that was found, within some seconds, to end a process as the item did; nothing if none did."""
    kit, end = LEVELS[level], time.monotonic() + seconds
    timeout = min(facts["timeout"], HANG_TIME) if kind == "hang" else facts["timeout"]
    worker = worker_for(facts, timeout)

    def text(candidate: Any, message: str = f"a {kind}") -> str:
        return file_text(kit.source(candidate), subject, f"{level} {item}", message)

    def dies(candidate: Any) -> bool:
        if time.monotonic() > end:
            return False
        worker.ask({"do": "nothing"})  # a new process's imports are not the candidate's time
        answer = worker.ask({"do": "try", "source": text(candidate)})
        return isinstance(answer, Death) and answer.kind == kind

    try:
        for candidate in kit.candidates(item, subject, settings):
            if dies(candidate):
                return text(kit.shrink(candidate, dies, settings.shrink_attempts))
    finally:
        worker.close()
    return ""
