"""A conformance run in this process: every item of some levels, every failure shrunk and as source.

pytest's plugin (``turret.testing.pytest_plugin``) does the same in worker processes, which may crash and hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from turret.hooks.devices import HOST
from turret.testing.comparison.outcome import Outcome, Report
from turret.testing.corpus.builder import Features
from turret.testing.kit.levels import LEVELS, Settings
from turret.testing.kit.levels.level import Size
from turret.testing.kit.subject import Compiler, Subject


def conformance(
    compiler: Compiler | None = None,
    *,
    plugins: Sequence[Any] = (),
    device: str = HOST.type,
    options: Mapping[str, Any] | None = None,
    levels: Sequence[str] = ("cases", "programs"),
    size: Size = "small",
    counts: Mapping[str, int] | None = None,
    seed: int = 0,
    features: Features | None = None,
    seconds: float | None = None,
    max_failures: int = 5,
    progress: Callable[[Outcome], None] | None = None,
) -> Report:
    """Check Turret with ``plugins``, or any ``compiler``, on a device, against eager.

    ``compiler`` takes a function and returns one that must behave the same, gradients, aliases and writes to inputs
    included.  ``levels`` are names of ``turret.testing.kit.levels.LEVELS``, ``counts`` how many items of a level
    instead of those of ``size``.  Narrow ``features`` to what is claimed to be supported.  Stops early after
    ``seconds``, or when ``max_failures`` items of a level have failed.
    """
    subject = Subject(plugins, device, options or {}, compiler)
    settings = Settings(size, seed, counts or {}, features)
    end = None if seconds is None else time.perf_counter() + seconds
    outcomes: list[Outcome] = []
    for name in levels:
        for outcome in _level_outcomes(name, subject, settings, end, max_failures):
            outcomes.append(outcome)
            if progress is not None:
                progress(outcome)
    return Report(str(subject), tuple(outcomes), seed)


def _level_outcomes(
    name: str, subject: Subject, settings: Settings, end: float | None, max_failures: int
) -> Iterator[Outcome]:
    level, failures = LEVELS[name], 0
    for item in level.items(subject, settings):
        if failures >= max_failures or (end is not None and time.perf_counter() > end):
            return
        outcome = level.check(item, subject, settings)
        failures += outcome.failed
        yield outcome
        subject.reset()
