"""Starting workers of a conformance run (``turret.testing.kit.worker`` is what runs in them)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from turret.testing.kit.isolation import Worker

PREPARE = 180.0
"""Seconds, at least, for a job that imports what others need or tries many candidates."""


def worker_for(facts: dict[str, Any], timeout: float) -> Worker:
    """A worker for what is under test, with this process's import path; ``timeout``: seconds for a job."""
    command = [sys.executable, "-m", "turret.testing.kit.worker", json.dumps({**facts, "timeout": timeout})]
    return Worker(command, max(timeout, PREPARE) + 30, {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
