"""A line on the terminal while a compile takes longer than a second; nothing where there is no terminal."""

from __future__ import annotations

import sys
import threading
import time

from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.storage.fork_safety import Lock, after_fork

PATIENCE = 1.0
"""Seconds of silence before the line appears, and between its updates."""


class _Line:
    """The state of the line: compilations under way, the newest stage, since when, and whether anything is shown.

    One stage (a C++ compiler at work) can take most of the time, so the line is drawn by a thread of its own,
    which lives while something is being compiled.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.idle = threading.Event()
        self.under_way = 0
        self.started = 0.0
        self.text = ""
        self.shown = False

    def start(self) -> None:
        with self.lock:
            self.under_way += 1
            if self.under_way == 1:
                self.started, self.text = time.monotonic(), ""
                self.idle = threading.Event()
                threading.Thread(target=self._draw, args=(self.idle,), name="turret-progress", daemon=True).start()

    def stage(self, event: Event) -> None:
        far = f" ({event.message})" if event.message else ""
        self.text = f"{event.stage} of {event.name}{far}"

    def stop(self) -> None:
        with self.lock:
            self.under_way = max(0, self.under_way - 1)
            if self.under_way:
                return
            self.idle.set()
            if self.shown:
                _write("\r\x1b[K")
                self.shown = False

    def _draw(self, idle: threading.Event) -> None:
        while not idle.wait(PATIENCE):
            with self.lock:
                if self.text and not idle.is_set():
                    _write(f"\r\x1b[Kturret: {self.text}, {time.monotonic() - self.started:.0f} s")
                    self.shown = True


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


_line = _Line()


@after_fork
def _no_line() -> None:
    """The thread that draws, and those that compile, are the parent's."""
    global _line
    _line = _Line()


@hookimpl
def turret_event(event: Event) -> None:
    """Keep the line up to date."""
    if event.kind == "compile_ended":
        _line.stop()
    elif sys.stderr is None or not sys.stderr.isatty():
        return
    elif event.kind == "compile_started":
        _line.start()
    elif event.kind in ("stage_started", "progress"):
        _line.stage(event)
