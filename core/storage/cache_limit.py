"""How large a cache folder may grow: bytes written are counted, and past the limit what was longest unused goes.

The count lies in a file that every writer adds to, so that nobody walks through the folder while it is below the
limit.  The walk then corrects the count: a writer that was killed, or that found another at the file, is missing in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

_COUNT = ".size"
_KEPT = 0.9
"""Share of the limit that is left when room was made."""
TOUCHED_SECONDS = 3600.0
"""An entry that was used is marked as such once in so long."""


@attrs.frozen
class _Stored:
    """One entry as the walk finds it."""

    path: Path
    used: float
    size: int


def note_written(folder: Path, size: int, limit: int, remove: Callable[[Path], None]) -> None:
    """Count ``size`` bytes more, and make room by ``remove`` where that is more than ``limit``."""
    with _count_of(folder) as file:
        if file is None:
            return
        known = _read(file)
        total = None if known is None else known + size
        if total is None or total > limit:
            total = make_room(folder, limit, remove)
        with contextlib.suppress(OSError):
            os.ftruncate(file, os.pwrite(file, str(total).encode(), 0))


@contextlib.contextmanager
def _count_of(folder: Path) -> Iterator[int | None]:
    """The open file with the count, which nobody else has now; None where that cannot be."""
    try:
        file = os.open(folder / _COUNT, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield file
    finally:
        os.close(file)


def _read(file: int) -> int | None:
    try:
        text = os.pread(file, 40, 0)
        return int(text) if text.isdigit() else None
    except OSError:
        return None


def make_room(folder: Path, limit: int, remove: Callable[[Path], None]) -> int:
    """Remove entries, those first that were longest unused, until the rest is well below ``limit``; its size."""
    found = list(_stored(folder))
    total = sum(entry.size for entry in found)
    if total <= limit:
        return total
    for entry in sorted(found, key=lambda e: (e.used, e.path)):
        if total <= limit * _KEPT:
            break
        remove(entry.path)
        total -= entry.size
    return total


def _stored(folder: Path) -> Iterator[_Stored]:
    # Others may remove what is walked through.
    for shard in _folders(folder):
        for entry in _folders(shard):
            with contextlib.suppress(OSError):
                size = sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(entry))
                yield _Stored(entry, entry.stat().st_mtime, size)


def _folders(folder: Path) -> list[Path]:
    try:
        found = [e for e in os.scandir(folder) if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(Path(e.path) for e in found)


def forget_count(folder: Path) -> None:
    """Have the next writer walk through the folder, which was emptied."""
    with contextlib.suppress(OSError):
        (folder / _COUNT).unlink()


def mark_used(path: Path, used: float) -> None:
    """Note that an entry, marked at ``used``, was used now; a clock that was set back makes up for itself."""
    if abs(time.time() - used) > TOUCHED_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)
