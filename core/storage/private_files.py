"""Files that nobody but this user can have written: folders are checked up to the root, files are read through no link.

What is read is what was checked: owner and mode are asked of the open file, not of its name.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from turret.errors import CacheError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_LINK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = _NO_LINK | getattr(os, "O_DIRECTORY", 0)
_FILE = _NO_LINK | getattr(os, "O_NONBLOCK", 0)  # a named pipe must not keep the reader waiting


class NotPrivate(ValueError):
    """A file or folder is another user's, may be written by others, or is of another kind than it should be."""


def make_private_folder(folder: Path) -> Path:
    """The folder without symbolic links in its path, made with mode 0700 where it is missing.

    Raises ``CacheError`` where it cannot be made, where it or a folder that leads to it is another user's, or where
    others may write to one of them.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        real = Path(os.path.realpath(folder))
        status = real.stat()
        if hasattr(os, "getuid"):
            _check_own(real, status)
            for parent in real.parents:
                _check_parent(real, parent, parent.stat())
    except OSError as error:
        raise CacheError(f"the cache folder {folder} cannot be made: {error}; set TURRET_CACHE_DIR") from error
    return real


def _check_own(folder: Path, status: os.stat_result) -> None:
    if status.st_uid != os.getuid():
        raise CacheError(f"the cache folder {folder} belongs to another user; set TURRET_CACHE_DIR")
    if status.st_mode & _OTHERS_WRITE:
        raise CacheError(f"others may write to the cache folder {folder}; chmod go-w it, or set TURRET_CACHE_DIR")


def _check_parent(folder: Path, parent: Path, status: os.stat_result) -> None:
    """Who may rename a folder on the way may put another one in its place; a sticky bit keeps others from that."""
    if status.st_uid not in (0, os.getuid(), _unmapped_user()):
        raise CacheError(
            f"the cache folder {folder} lies in {parent}, which belongs to another user; set TURRET_CACHE_DIR"
        )
    writers = status.st_mode & _OTHERS_WRITE
    if writers == stat.S_IWGRP and status.st_gid == os.getgid() == os.getuid():
        return  # the user's own group, of whom many systems make each the one member
    if writers and not status.st_mode & stat.S_ISVTX:
        raise CacheError(
            f"the cache folder {folder} lies in {parent}, to which others may write; "
            "chmod go-w that, or set TURRET_CACHE_DIR"
        )


@functools.cache
def _unmapped_user() -> int:
    """Who owns what belongs to the machine's users, as a container sees it that has users of its own; else root."""
    try:
        mapped = Path("/proc/self/uid_map").read_text().split()
        return 0 if mapped[:3] == ["0", "0", "4294967295"] else int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 0


class PrivateFolder:
    """An open folder: a context whose files are read by name.  Raises ``NotPrivate`` or ``OSError`` where it cannot."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> PrivateFolder:
        self.descriptor = os.open(self.path, _FOLDER)
        try:
            self.status = os.fstat(self.descriptor)
            _check_status(self.status, str(self.path))
        except BaseException:
            os.close(self.descriptor)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)

    def read(self, name: str) -> bytes:
        """The content of a file in the folder."""
        if name != os.path.basename(name) or name in ("", os.curdir, os.pardir):
            raise NotPrivate(f"{name!r} is no name of a file")
        descriptor = os.open(name, _FILE, dir_fd=self.descriptor)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise NotPrivate(f"{name} is no plain file")
            _check_status(status, name)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)


def is_private(folder: Path) -> bool:
    """Whether a folder can be read as a private one."""
    try:
        with PrivateFolder(folder):
            return True
    except (NotPrivate, OSError):
        return False


def _check_status(status: os.stat_result, name: str) -> None:
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise NotPrivate(f"{name} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise NotPrivate(f"others may write to {name}")
