"""What is a library's: modules and functions known by name, and extension modules known by their files."""

from __future__ import annotations

import builtins
import functools
import hashlib
import os
import sys
import types
from typing import Any

import torch

LIBRARY_ROOTS = (
    frozenset(sys.stdlib_module_names) | {"torch", "functorch", "torchgen", "builtins", "turret", "typing_extensions"}
) - {"__main__", "test", "this", "antigravity", "idlelib"}
"""Packages whose versions are part of every key; their functions are told by name."""
_HASHED_BYTES = 64 << 20


def is_library(name: Any) -> bool:
    """Whether a module of this name is a library's: its version is part of every key."""
    return isinstance(name, str) and name.partition(".")[0] in LIBRARY_ROOTS


def is_library_function(function: types.FunctionType) -> bool:
    """Whether a function's globals are a library's module, and not a namespace that calls itself so."""
    name = function.__globals__.get("__name__")
    return isinstance(name, str) and is_library(name) and vars(sys.modules.get(name, builtins)) is function.__globals__


def extension_text(module: str) -> str:
    """The identity of the file of an extension module."""
    return _file_text(getattr(sys.modules.get(module), "__file__", None) or module)


def extensions_text() -> list[str]:
    """Of all libraries in C that are no part of Python or torch: kernels may lie in any of them."""
    files = {str(path) for path in torch.ops.loaded_libraries}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith((".so", ".pyd", ".dylib")) and name.partition(".")[0] not in _KNOWN:
            files.add(path)
    return sorted(map(_file_text, files))


_KNOWN = LIBRARY_ROOTS | {"numpy"}


def _file_text(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return os.path.basename(path)
    return f"{os.path.basename(path)} {_file_hash(path, status.st_size, status.st_mtime_ns, status.st_ino)}"


@functools.lru_cache(maxsize=256)
def _file_hash(path: str, size: int, modified: int, inode: int) -> str:
    """Hash of a file's content; of one that is very large its size and time beside both ends."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= _HASHED_BYTES:
            digest.update(file.read())
        else:
            digest.update(f"{size} {modified}".encode() + file.read(_HASHED_BYTES // 2))
            file.seek(-_HASHED_BYTES // 2, os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()
