"""What every hook is handed: the configuration, the other hooks, and a way to report."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import attrs

from turret.errors import Stage
from turret.hooks.config import Config
from turret.hooks.events import Event, EventKind
from turret.storage.artifact_cache import Store, open_store, process_cache


@attrs.frozen(eq=False)
class CompileContext:
    """One compilation under way.

    ``config`` is the frozen configuration; ``hooks`` is the pluggy relay of the plugins that hold for this
    callable (``context.hooks.turret_fusion_score(context=context, ...)``).
    """

    config: Config
    hooks: Any
    compile_id: int
    on_event: Callable[[Event], None]
    devices: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Gives a context in which ``device_for`` asks these plugins."""
    given: tuple[Any, ...] = ()
    """The plugin objects of this callable alone, where they tell all of it from others: see ``Manager.given``."""

    def emit(
        self,
        kind: EventKind,
        *,
        stage: Stage | Literal[""] = "",
        name: str = "",
        product: Any = None,
        seconds: float | None = None,
        message: str = "",
    ) -> None:
        """Tell all observers, in the fields of an ``Event``; never raises for an observer's failure."""
        event = Event(kind, self.compile_id, stage, name, product, seconds, message, self.config.debug_dir)
        if kind.startswith("cache_"):
            _counts[f"{event.stage} {kind.removeprefix('cache_')}"] += 1
        self.on_event(event)

    def store(self, stage: Stage) -> Store:
        """Where a stage keeps artifacts: the cache folder, or this process's memory where the cache is off."""
        config = self.config
        if not config.cache:
            return process_cache
        failure = functools.partial(self.emit, "cache_failure", stage=stage)
        return open_store(config.cache_dir, limit=config.cache_size_limit, report=lambda text: failure(message=text))


_counts: Counter[str] = Counter()


def cache_counts() -> dict[str, int]:
    """How often this process asked the artifact cache: hits, misses and failures, by stage (``"graph hit"``)."""
    return dict(_counts)
