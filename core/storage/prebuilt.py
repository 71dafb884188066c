"""Native libraries built ahead of time, where every process of one Python environment looks for them first.

They lie beside the packages that they were built from and are trusted as those are: who may write there may change
this program.  A library's key holds all that its binary depends on, so that one of another source is never found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from turret.errors import TurretError


def folder() -> Path:
    """Where this interpreter's libraries lie; interpreters that share a prefix have a folder each."""
    interpreter = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    return Path(sys.prefix, "share", "turret", "native", interpreter)


def find(key: str, library: str) -> Path | None:
    """The library of a key, or None where there is none that can be read."""
    path = folder() / key / library
    return path if os.access(path, os.R_OK) else None


def put(key: str, library: str, build: Callable[[], bytes]) -> Path:
    """Build a library into its place, where it is whole or not at all; readable to whom the umask says.

    Raises ``TurretError`` where the folder cannot be written (before anything is built), and what ``build`` raises.
    """
    target = folder() / key
    with _scratch(target) as scratch:
        made = scratch / library
        content = build()
        try:
            made.write_bytes(content)
            os.replace(made, target / library)
        except OSError as error:
            raise _unwritable(error) from error
    return target / library


def prune(keys: Collection[str]) -> int:
    """Remove the libraries of all other keys; returns how many there were."""
    with contextlib.suppress(OSError):
        stale = [path for path in folder().iterdir() if path.name not in keys]
        for path in stale:
            shutil.rmtree(path, ignore_errors=True)
        return sum(not path.exists() for path in stale)
    return 0


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A folder in ``target``, so that what a killed build leaves goes when the key does."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target, prefix=".new-"))
    except OSError as error:
        raise _unwritable(error) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            target.rmdir()  # empty where nothing was built


def _unwritable(error: OSError) -> TurretError:
    return TurretError(
        f"native parts cannot be written to {folder()}: {error}; run `turret build` as the user who installed this "
        "Python environment, or in a virtual environment of your own (without it they are built at first use)"
    )
