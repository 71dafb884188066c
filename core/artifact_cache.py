"""The artifact cache: a content-addressed store of folders, private to the user, safe to share among processes.

An entry is a folder named by its key with the files of one artifact and a manifest of their hashes.  It is
written beside its place and renamed into it, so it is there whole or not at all; on reading, hashes are
checked once a process, and an entry that does not verify is removed and made anew.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from turret.errors import CacheError
from turret.fork_safety import Lock

_MANIFEST = "manifest.json"
_ATTEMPTS = 5
_verified: set[Path] = set()
_lock = Lock()


def default_folder() -> Path:
    """``$TURRET_CACHE_DIR``, else ``~/.cache/turret``."""
    named = os.environ.get("TURRET_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "turret"


class ArtifactCache:
    """The store in one folder, made with mode 0700; raises ``CacheError`` where the folder is another user's."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder else default_folder()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = self.folder.stat()
        except OSError as error:
            raise CacheError(f"the cache folder {self.folder} cannot be made: {error}; set TURRET_CACHE_DIR") from error
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise CacheError(f"the cache folder {self.folder} belongs to another user; set TURRET_CACHE_DIR")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CacheError(
                f"others may write to the cache folder {self.folder}; chmod go-w it, or set TURRET_CACHE_DIR"
            )

    def path(self, key: str) -> Path:
        """Where the entry of a key lies (whether or not it is there)."""
        return self.folder / key[:2] / key

    def get(self, key: str) -> Path | None:
        """The folder of a verified entry, or None; an entry that does not verify is removed."""
        path = self.path(key)
        if path in _verified and path.exists():
            return path
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            good = all(_hash((path / name).read_bytes()) == digest for name, digest in manifest.items())
        except FileNotFoundError:
            good = False
            if not path.exists():
                return None
        except (OSError, ValueError, AttributeError):
            good = False
        if not good:
            shutil.rmtree(path, ignore_errors=True)
            return None
        with _lock:
            _verified.add(path)
        return path

    def put(self, key: str, files: Mapping[str, bytes]) -> Path:
        """Write an entry; returns its folder.  Where another process was quicker, its entry stays.

        Raises ``CacheError`` where it cannot be written (a full disk, say).
        """
        path = self.path(key)
        problem: OSError | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._write(path, files)
            except OSError as error:
                problem = error
            # A rename fails over an entry of another process (good or corrupted), or where one cleared the cache.
            if self.get(key) is not None:
                return path
        raise CacheError(f"the cache entry {path} cannot be written: {problem}") from problem

    def _write(self, path: Path, files: Mapping[str, bytes]) -> None:
        """Write files and manifest beside ``path`` and rename them into it."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        building = Path(tempfile.mkdtemp(dir=path.parent, prefix=".new-"))
        try:
            for name, content in files.items():
                (building / name).write_bytes(content)
            (building / _MANIFEST).write_text(json.dumps({name: _hash(c) for name, c in files.items()}))
            os.rename(building, path)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def remove(self, key: str) -> None:
        """Remove the entry of a key, if there is one."""
        shutil.rmtree(self.path(key), ignore_errors=True)
        with _lock:
            _verified.discard(self.path(key))

    def get_or_build(self, key: str, build: Callable[[], Mapping[str, bytes]]) -> tuple[Path, bool]:
        """The entry of a key, made by ``build`` where it is missing; and whether it was there."""
        found = self.get(key)
        return (found, True) if found is not None else (self.put(key, build()), False)

    def entries(self) -> list[Path]:
        """Folders of all entries."""
        return sorted(
            Path(folder, name)
            for folder, names, _ in os.walk(self.folder)
            for name in names
            if Path(folder).parent == self.folder and not name.startswith(".")
        )

    def size(self) -> int:
        """Bytes of all files."""
        total = 0
        # Another process may remove files and folders meanwhile, which a walk passes over.
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += Path(folder, name).stat().st_size
        return total

    def clear(self) -> int:
        """Remove all entries; returns how many there were."""
        entries = self.entries()
        for folder in self.folder.glob("??"):
            shutil.rmtree(folder, ignore_errors=True)
        with _lock:
            _verified.clear()
        return len(entries)


@functools.cache
def process_cache() -> ArtifactCache:
    """A store that lasts as long as the process, for artifacts that must lie in files where caching is off."""
    folder, maker = tempfile.mkdtemp(prefix="turret-"), os.getpid()

    @atexit.register
    def remove() -> None:
        if os.getpid() == maker:  # a forked child may end first
            shutil.rmtree(folder, ignore_errors=True)

    return ArtifactCache(folder)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
