"""What every hook is handed: the configuration, the other hooks, and a way to report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from turret.config import Config
from turret.events import Event, EventKind


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

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Tell all observers; never raises for an observer's failure."""
        self.on_event(Event(kind=kind, compile_id=self.compile_id, debug_dir=self.config.debug_dir, **fields))
