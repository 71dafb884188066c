"""The artifact cache: a content-addressed store of folders, private to the user, safe to share among processes.

An entry is a folder named by its key with the files of one artifact and a manifest: its key, what it is for (its role),
and the hashes of its files.  It is written beside its place and renamed into it, so it is there whole or not at all.
Reading gives the very bytes that were hashed; an entry that does not verify is reported, removed and made anew.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from turret.errors import CacheError, warn
from turret.storage import cache_limit
from turret.storage.private_files import NotPrivate, PrivateFolder, is_private, make_private_folder

FORMAT = "v2"
"""Of entries; those of another format lie in a folder of their own, for the versions of Turret that made them."""
DEFAULT_LIMIT = 10 << 30
"""Bytes that a folder may hold."""

_MANIFEST = "manifest.json"
_BUILDING = ".building"
_ATTEMPTS = 5
_ABANDONED_SECONDS = 60.0
Report = Callable[[str], None]


def default_folder() -> Path:
    """``$TURRET_CACHE_DIR``, else ``~/.cache/turret``."""
    named = os.environ.get("TURRET_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "turret"


@attrs.frozen(eq=False)
class Entry:
    """An artifact in memory: ``files`` are the bytes that verified, or that were just made."""

    key: str
    role: str
    files: Mapping[str, bytes]

    def __getitem__(self, name: str) -> bytes:
        """A file's content; ``CacheError`` where there is none of that name."""
        try:
            return self.files[name]
        except KeyError:
            raise CacheError(f"the {self.role} {self.key} has no file {name}") from None


def _say_nothing(message: str) -> None:
    """Where nobody listens to what went wrong with an entry."""


class ArtifactCache:
    """The store in one folder, made with mode 0700; raises ``CacheError`` where others could write to it.

    ``limit``: bytes that it may hold (0: any number), past which what was longest unused is removed.  ``report`` is
    told of every entry that could not be used or written.
    """

    def __init__(
        self, folder: Path | str | None = None, *, limit: int = DEFAULT_LIMIT, report: Report = _say_nothing
    ) -> None:
        self.folder = make_private_folder(Path(folder) if folder else default_folder())
        self._root = self.folder / FORMAT
        self.limit, self.report = limit, report

    def path(self, key: str) -> Path:
        """Where the entry of a key lies (whether or not it is there)."""
        return self._root / key[:2] / key

    def contains(self, key: str) -> bool:
        """Whether there is something under a key, good or not."""
        return os.path.lexists(self.path(key))

    def used(self, key: str) -> float:
        """When an entry was written or last marked as used (a time); 0 where there is none."""
        try:
            return self.path(key).lstat().st_mtime
        except OSError:
            return 0.0

    def get(self, key: str, role: str) -> Entry | None:
        """A verified entry, or None; one that does not verify is removed."""
        path = self.path(key)
        try:
            return self._read(path, key, role)
        except FileNotFoundError as error:
            if not os.path.lexists(path):
                return None
            problem = f"{error.filename} is missing"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problem = str(error) or type(error).__name__
        except OSError as error:
            if error.errno not in _OF_ANOTHER_KIND:  # no fault of the entry: too many open files, say
                self.report(f"the cache entry {path} cannot be read: {error}")
                return None
            problem = str(error)
        self.report(f"the cache entry {path} is not used: {problem}")
        self._discard(path if is_private(path.parent) else path.parent)
        return None

    def _read(self, path: Path, key: str, role: str) -> Entry:
        """The entry; raises ``ValueError`` and its like where it does not verify."""
        with PrivateFolder(path.parent), PrivateFolder(path) as folder:
            manifest = json.loads(folder.read(_MANIFEST))
            known = (manifest["format"], manifest["key"], manifest["role"])
            if known != (FORMAT, key, role):
                raise NotPrivate(f"it says that it is {known}, and not {(FORMAT, key, role)}")
            files = {name: folder.read(name) for name in manifest["files"]}
            for name, content in files.items():
                if _hash(content) != manifest["files"][name]:
                    raise NotPrivate(f"{name} is not what was written")
        cache_limit.mark_used(path, folder.status.st_mtime)
        return Entry(key, role, files)

    def put(self, key: str, role: str, files: Mapping[str, bytes]) -> Entry:
        """Write an entry and give it back.  Where another process was quicker, its entry stays, and is given back.

        Raises ``CacheError`` where it cannot be written (a full disk, say).
        """
        path = self.path(key)
        for attempt in range(_ATTEMPTS):
            try:
                written = self._write(path, key, role, files)
            except OSError as error:
                # A rename fails over an entry of another process (good or damaged), or where one cleared the cache.
                found = self.get(key, role)
                if found is not None:
                    return found
                if error.errno in _HOPELESS or attempt == _ATTEMPTS - 1:
                    raise CacheError(f"the cache entry {path} cannot be written: {error}") from error
            else:
                break
        if self.limit:
            cache_limit.note_written(self._root, written, self.limit, self._discard)
        return Entry(key, role, files)

    def keep(self, key: str, role: str, files: Mapping[str, bytes]) -> Entry:
        """``put``, where it can be; what cannot be written is reported and holds in this process."""
        try:
            return self.put(key, role, files)
        except CacheError as error:
            self.report(str(error))
            return Entry(key, role, files)

    def _write(self, path: Path, key: str, role: str, files: Mapping[str, bytes]) -> int:
        """Write files and manifest beside ``path`` and rename them into it; bytes written."""
        hashes = {name: _hash(content) for name, content in files.items()}
        manifest = {"format": FORMAT, "key": key, "role": role, "files": hashes}
        contents = {**files, _MANIFEST: json.dumps(manifest).encode()}
        with self._building() as made:
            for name, content in contents.items():
                (made / name).write_bytes(content)
                (made / name).chmod(0o600)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.rename(made, path)
        return sum(map(len, contents.values()))

    @contextlib.contextmanager
    def _building(self) -> Iterator[Path]:
        """A new folder that is locked while it is here, so that others can tell it from what a killed writer left."""
        building = self._root / _BUILDING
        building.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_abandoned(building)
        made = Path(tempfile.mkdtemp(dir=building))
        lock = os.open(made, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # where folders cannot be locked, their age decides
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
            os.close(lock)

    def _discard(self, path: Path) -> None:
        """Take something out of the store at once, and then remove it; where that cannot be, it stays."""
        try:
            if not _is_folder(path):
                path.unlink()
                return
            with self._building() as folder:
                os.rename(path, folder / "discarded")
        except OSError:
            shutil.rmtree(path, ignore_errors=True)

    def remove(self, key: str) -> None:
        """Remove the entry of a key, if there is one."""
        if self.contains(key):
            self._discard(self.path(key))

    def get_or_build(self, key: str, role: str, build: Callable[[], Mapping[str, bytes]]) -> tuple[Entry, bool]:
        """The entry of a key, made by ``build`` where it is missing (and kept); and whether it was there."""
        found = self.get(key, role)
        return (found, True) if found is not None else (self.keep(key, role, build()), False)

    def entries(self) -> list[Path]:
        """Folders of all entries."""
        shards = [p for p in _listed(self._root) if not p.name.startswith(".")]
        return [path for shard in shards for path in _listed(shard) if not path.name.startswith(".")]

    def size(self) -> int:
        """Bytes of all files of entries."""
        total = 0
        # Another process may remove files and folders meanwhile, which a walk passes over.
        for entry in self.entries():
            for path in _listed(entry):
                with contextlib.suppress(OSError):
                    total += path.lstat().st_size
        return total

    def clear(self) -> int:
        """Remove all entries, those of other formats too; returns how many there were of this one."""
        entries = self.entries()
        for folder in (*self._root.glob("??"), *self.folder.glob("??")):
            if folder != self._root:
                self._discard(folder)
        _remove_abandoned(self._root / _BUILDING)
        cache_limit.forget_count(self._root)
        return len(entries)


_HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors that another attempt meets again."""
_OF_ANOTHER_KIND = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
"""Errors of opening what is a link, or a file in place of a folder, or the other way round."""


def _is_folder(path: Path) -> bool:
    """Whether something is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _remove_abandoned(folder: Path) -> None:
    """Remove folders in which nobody writes (any more): their lock is free, and their time is not now."""
    for path in _listed(folder):
        with contextlib.suppress(OSError):
            if abs(time.time() - path.lstat().st_mtime) < _ABANDONED_SECONDS:
                continue
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(file)


class ProcessCache:
    """The store of this process's memory: what was made last, for those who load it next, with or without a folder."""

    most, least = 64 << 20, 32
    """Bytes that are kept, and entries that are kept in any case."""

    def __init__(self) -> None:
        self._entries: collections.OrderedDict[str, Entry] = collections.OrderedDict()

    def contains(self, key: str) -> bool:
        """Whether there is an entry under a key."""
        return key in self._entries

    def used(self, key: str) -> float:
        """Times are not kept here."""
        return 0.0

    def get(self, key: str, role: str) -> Entry | None:
        """The entry of a key, or None."""
        found = self._entries.get(key)
        return found if found is not None and found.role == role else None

    def put(self, key: str, role: str, files: Mapping[str, bytes]) -> Entry:
        """Keep an entry and give it back."""
        entry = Entry(key, role, files)
        self._entries.pop(key, None)
        self._entries[key] = entry
        kept = list(self._entries.values())
        sizes = [sum(map(len, e.files.values())) for e in kept]
        total = sum(sizes)
        for old, size in zip(kept[: -self.least], sizes, strict=False):
            if total <= self.most:
                break
            self._entries.pop(old.key, None)
            total -= size
        return entry

    keep = put

    def remove(self, key: str) -> None:
        """Remove the entry of a key, if there is one."""
        self._entries.pop(key, None)

    def get_or_build(self, key: str, role: str, build: Callable[[], Mapping[str, bytes]]) -> tuple[Entry, bool]:
        """As in a folder."""
        found = self.get(key, role)
        return (found, True) if found is not None else (self.put(key, role, build()), False)


process_cache = ProcessCache()
Store = ArtifactCache | ProcessCache


def open_store(folder: str = "", *, limit: int = DEFAULT_LIMIT, report: Report | None = None) -> Store:
    """The store in a folder (by default the user's); this process's memory, on record, where that cannot be used.

    Without ``report``, problems are warnings.
    """
    tell = _warn if report is None else report
    try:
        return ArtifactCache(folder or None, limit=limit, report=tell)
    except CacheError as error:
        tell(str(error))
        return process_cache


def _warn(message: str) -> None:
    warn(f"Turret's cache: {message}")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
