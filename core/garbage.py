"""Garbage collection while something is compiled: full collections wait.

A compile makes many objects that live to its end.  Each time their number has grown by a quarter, Python looks at every
object of the process (those of torch, sympy and the user's program among them), finds next to nothing to free, and
takes a fifth of the time that a compile takes.  Young objects are collected as ever, which is where cycles die.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_NEVER = 1 << 30


class _Wait:
    """How many compiles are under way in all threads, and the threshold that the last of them sets again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way = 0
        self.threshold = 0


_wait = _Wait()


@contextlib.contextmanager
def full_collections_wait() -> Iterator[None]:
    """Within it Python starts no collection of the oldest generation by itself; ``gc.collect()`` works as ever.

    A threshold that the program sets meanwhile stays.
    """
    with _wait.lock:
        _wait.under_way += 1
        if _wait.under_way == 1:
            young, middle, _wait.threshold = gc.get_threshold()
            gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        with _wait.lock:
            _wait.under_way -= 1
            young, middle, old = gc.get_threshold()
            if _wait.under_way == 0 and old == _NEVER:
                gc.set_threshold(young, middle, _wait.threshold)
