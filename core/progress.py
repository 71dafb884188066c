"""A line on the terminal while a compile takes longer than a second; nothing where there is no terminal."""

from __future__ import annotations

import sys
import threading
import time

from turret.events import Event
from turret.hookspecs import hookimpl

PATIENCE = 1.0
"""Seconds of silence before the line appears."""


class _Line:
    """The state of the line: the stage under way, since when, and whether anything is shown."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started = 0.0
        self.shown = False
        self.depth = 0

    def stage(self, event: Event) -> None:
        with self.lock:
            if time.monotonic() - self.started > PATIENCE and self.depth:
                seconds = time.monotonic() - self.started
                print(
                    f"\r\x1b[Kturret: {event.stage} of {event.name}, {seconds:.0f} s",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
                self.shown = True

    def start(self) -> None:
        with self.lock:
            self.depth += 1
            self.started = time.monotonic()

    def stop(self) -> None:
        with self.lock:
            self.depth = max(0, self.depth - 1)
            if self.shown and not self.depth:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
                self.shown = False


_line = _Line()


@hookimpl
def turret_event(event: Event) -> None:
    """Keep the line up to date."""
    if not sys.stderr.isatty():
        return
    if event.kind == "compile_started":
        _line.start()
    elif event.kind in ("compile_ended", "fallback"):
        _line.stop()
    elif event.kind == "stage_started":
        _line.stage(event)
