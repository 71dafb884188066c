"""Locks that a forked child finds free, whatever the threads that it does not have were doing.

A fork copies the memory of a process and one of its threads.  A lock that another thread held would stay held in the
child for ever: a data loader's worker that compiles its first graph would wait and never return.  All locks of Turret
are therefore ``Lock``; what a lock protects and other threads left half done is put right by ``after_fork``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_IMPORT_PATIENCE = 10.0
"""Seconds for which a fork waits for imports that other threads have under way."""


class Lock:
    """A reentrant lock for ``with``; in a forked child it is free, unless the thread that forked holds it."""

    __slots__ = ("__weakref__", "_depth", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner, self._depth = 0, 0
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
        self._lock.release()

    def is_held_here(self) -> bool:
        """Whether this thread holds it."""
        return self._owner == threading.get_ident()

    def _abandon(self) -> None:
        """In a forked child: forget an owner that is not there."""
        if self._owner != threading.get_ident():
            self._lock = threading.RLock()
            self._owner, self._depth = 0, 0


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def after_fork(put_right: Callable[[], Any]) -> Callable[[], Any]:
    """Call a function in every forked child, after all locks are free; returns it, so that it can decorate."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=put_right)
    return put_right


class _Compiling:
    """How many compilations each thread is in."""

    def __init__(self) -> None:
        self.depths: dict[int, int] = {}

    @contextmanager
    def here(self) -> Iterator[None]:
        """Count one more on this thread."""
        thread = threading.get_ident()
        self.depths[thread] = self.depths.get(thread, 0) + 1
        try:
            yield
        finally:
            left = self.depths[thread] - 1
            if left:
                self.depths[thread] = left
            else:
                del self.depths[thread]

    def is_here(self) -> bool:
        """Whether this thread is in one."""
        return threading.get_ident() in self.depths

    def keep_this_thread(self) -> None:
        """In a forked child: forget the threads that are not there."""
        thread = threading.get_ident()
        self.depths = {thread: self.depths[thread]} if thread in self.depths else {}


compiling = _Compiling()
"""What is compiled now, in which threads."""


def _wait_for_imports() -> None:
    """Before a fork: let threads that compile finish the imports that they are in.

    A module that is imported half stays so in the child, where whoever wants it waits for the thread that began.
    """
    end = time.monotonic() + _IMPORT_PATIENCE
    while _others_import() and time.monotonic() < end:
        time.sleep(0.001)


def _others_import() -> bool:
    threads = compiling.depths.keys() - {threading.get_ident()}
    if not threads:
        return False
    frames = sys._current_frames()
    return any(_imports(frames.get(thread)) for thread in threads)


def _imports(frame: types.FrameType | None) -> bool:
    """Whether a thread that executes ``frame`` is importing something."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _free_locks() -> None:
    for lock in list(_locks):
        lock._abandon()
    compiling.keep_this_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_free_locks)
