"""Counts what Turret made of a program: fused kernels and calls of library operations."""

from __future__ import annotations

import collections

from turret.events import Event
from turret.hookspecs import hookimpl


class ScheduleCounter:
    """A plugin that adds up kernels and externs of every schedule, and remembers breaks and fallbacks."""

    def __init__(self) -> None:
        self.kernels = 0
        self.externs: collections.Counter[str] = collections.Counter()
        self.notes: list[str] = []

    @hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.kernels += len(event.product.kernels)
            self.externs.update(str(extern.op) for extern in event.product.externs)
        elif event.kind in ("graph_break", "fallback"):
            self.notes.append(f"{event.kind}: {event.message}")

    @property
    def classification(self) -> str:
        """``"kernels"``, ``"externs"``, ``"both"``, or ``"nothing"`` (views and constants alone)."""
        if self.kernels and self.externs:
            return "both"
        if self.kernels:
            return "kernels"
        return "externs" if self.externs else "nothing"
