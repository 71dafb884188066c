"""Garbage collection while something is compiled: full collections wait.

A compile makes many objects that live to its end.  Each time their number has grown by a quarter, Python looks at every
object of the process (those of torch, sympy and the user's program among them), finds next to nothing to free, and
takes a fifth of the time that a compile takes, or a third of a warm start, whose imports count.  Young objects are
collected as ever, which is where cycles die.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from turret.storage.fork_safety import Lock, after_fork

_NEVER = 1 << 30


class _Wait:
    """The threads of all compiles that are under way, and the threshold that the last of them sets again."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.threads: list[int] = []
        self.threshold = 0

    def begin(self) -> None:
        self.threads.append(threading.get_ident())
        if len(self.threads) == 1:
            young, middle, self.threshold = gc.get_threshold()
            gc.set_threshold(young, middle, _NEVER)

    def end(self) -> None:
        self.threads.remove(threading.get_ident())
        self.restore()

    def restore(self) -> None:
        young, middle, old = gc.get_threshold()
        if not self.threads and old == _NEVER:
            gc.set_threshold(young, middle, self.threshold)


_wait = _Wait()


@after_fork
def _keep_this_thread() -> None:
    _wait.threads = [thread for thread in _wait.threads if thread == threading.get_ident()]
    _wait.restore()


@contextlib.contextmanager
def full_gc_paused() -> Iterator[None]:
    """Within it Python starts no collection of the oldest generation by itself; ``gc.collect()`` works as ever.

    A threshold that the program sets meanwhile stays.
    """
    with _wait.lock:
        _wait.begin()
    try:
        yield
    finally:
        with _wait.lock:
            _wait.end()
