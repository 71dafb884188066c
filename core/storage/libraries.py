"""Shared libraries from memory: what is loaded is the content that was verified, whatever lies in a file by then."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from turret.errors import CacheError
from turret.storage.artifact_cache import Entry, Store, open_store, process_cache
from turret.storage.codec import record

if TYPE_CHECKING:
    from turret.hooks.context import CompileContext

ROLE = "library"
_numbers = itertools.count(1)
_opened: dict[bytes, ctypes.CDLL] = {}


@record
@attrs.frozen
class Library:
    """Where a plan's native code lies: ``file`` in the entry ``key`` of an artifact cache, any that has the entry."""

    key: str
    file: str


def keep_library(store: Store, key: str, files: dict[str, bytes]) -> Entry:
    """Store native code for other processes, and keep it for this one, which will load it next."""
    return process_cache.put(key, ROLE, store.keep(key, ROLE, files).files)


def stored_library(store: Store, key: str) -> Entry | None:
    """The entry of native code that ``store`` has, kept for this process, which will load it next; or None."""
    found = store.get(key, ROLE)
    return None if found is None else process_cache.put(key, ROLE, found.files)


def built_library(
    context: CompileContext, file: str, parts: Iterable[str], build: Callable[[], dict[str, bytes]]
) -> Library:
    """Native code under a key made of ``parts``, all that it depends on: from the cache, else what ``build`` makes.

    ``file`` is the one of its files that a plan names.
    """
    key, store = hashlib.sha256("\0".join(parts).encode()).hexdigest(), context.store("codegen")
    found = stored_library(store, key) is not None
    context.emit("cache_hit" if found else "cache_miss", stage="codegen", message=f"the library {key}")
    if not found:
        keep_library(store, key, build())
    return Library(key, file)


def forget_library(library: Library, store: Store) -> None:
    """Remove a library that does not load, so that it is made anew."""
    for cache in (process_cache, store):
        cache.remove(library.key)


def find_library(library: Library, store: Store | None = None) -> Entry:
    """The verified entry of a library: of this process, else of ``store`` (None: the default cache).

    Raises ``CacheError`` where it is not there (any more).
    """
    found = process_cache.get(library.key, ROLE)
    if found is None:
        found = (open_store() if store is None else store).get(library.key, ROLE)
    if found is None:
        raise CacheError(f"the native library {library.key} is not in the cache (any more)")
    return found


def open_library(content: bytes, name: str = "library") -> ctypes.CDLL:
    """Load a library; the same content is loaded once a process.  Raises ``OSError`` where it is none."""
    digest = hashlib.sha256(content).digest()
    if digest not in _opened:
        _opened[digest] = open_anew(content, name)
    return _opened[digest]


def open_anew(content: bytes, name: str = "library") -> ctypes.CDLL:
    """Load a library with data of its own, beside what is loaded of the same content."""
    with as_path(content, name) as path:
        return ctypes.CDLL(path)


@contextlib.contextmanager
def as_path(content: bytes, name: str) -> Iterator[str]:
    """A path that leads to ``content``, as long as the context lasts, and to nothing else ever."""
    file = _memory_file(name)
    if file is None:
        with tempfile.TemporaryDirectory(prefix="turret-library-") as folder:
            path = Path(folder, f"{next(_numbers)}-{name}")
            path.write_bytes(content)
            yield str(path)
        return
    with open(file, "wb") as writer:
        writer.write(content)
        writer.flush()
        yield _unique_path(file)


def _memory_file(name: str) -> int | None:
    """A new file that lies in memory alone; None where there are none that code may be loaded from."""
    try:
        file = os.memfd_create(f"turret-{name}", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return None
    if os.access(f"/proc/self/fd/{file}", os.X_OK):
        return file
    os.close(file)
    return None


def _unique_path(file: int) -> str:
    """A path of an open file that no other file ever has: the dynamic linker takes equal paths for the same library.

    Numbers of files are used again; the detours in the path are not.
    """
    detours = f"{next(_numbers):b}".replace("1", "./").replace("0", "../fd/")
    return f"/proc/self/fd/{detours}{file}"
