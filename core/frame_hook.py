"""The native frame hook: built for the running interpreter at first use, kept in the artifact cache, and loaded.

It is built at first use and not at install because it reaches into the interpreter's frames: its binary fits
one minor version of CPython alone, and an install made for one environment is often used from another.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import opcode
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import weakref
from pathlib import Path
from typing import Any

from turret.artifact_cache import ArtifactCache
from turret.errors import CodegenError

SKIP, CAPTURE, SKIP_CALLEES = 1, 2, 3
"""What ``mark`` says of a code object; ``classify`` callbacks return one of them."""

_SOURCE = Path(__file__).with_name("native") / "frame_hook.cpp"
_LIBRARY = "_turret_frame_hook.so"
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-w")


captures: weakref.WeakSet[Any] = weakref.WeakSet()
"""What keeps captured code, for ``turret.reset``; each has a method ``forget``."""


def forget_captures() -> None:
    """Drop all captured code; callables are captured anew when next called."""
    for kept in list(captures):
        kept.forget()


@functools.cache
def load() -> Any:
    """The extension module; builds it where the cache has none for this interpreter.

    Raises ``CodegenError`` with what is missing (a C++ compiler, the Python headers) and how to get it.
    """
    source = _SOURCE.read_bytes()
    folder, _ = _cache().get_or_build(_key(source), lambda: {_LIBRARY: _build()})
    spec = importlib.util.spec_from_file_location("_turret_frame_hook", folder / _LIBRARY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=module.after_fork)
    return module


def _cache() -> ArtifactCache:
    return ArtifactCache()


def _key(source: bytes) -> str:
    facts = (sys.version, sys.implementation.cache_tag, sysconfig.get_platform(), *_FLAGS)
    return hashlib.sha256(repr(facts).encode() + source).hexdigest()


def _build() -> bytes:
    headers = sysconfig.get_paths()["include"]
    if not Path(headers, "internal", "pycore_frame.h").exists():
        raise CodegenError(
            f"Turret's frame capture needs the Python headers, and {headers} lacks them; "
            f"install them (Debian and Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev)"
        )
    named = shlex.split(os.environ.get("CXX", ""))
    found = next((c for c in (*named[:1], "g++", "clang++", "c++") if shutil.which(c)), None)
    if found is None:
        raise CodegenError("Turret's frame capture needs a C++ compiler: install g++ or clang++, or name one in CXX")
    with tempfile.TemporaryDirectory(prefix="turret-hook-") as scratch:
        made = Path(scratch, _LIBRARY)
        command = [
            found, *_FLAGS, f"-I{headers}", f"-I{headers}/internal",
            f"-DRETURN_VALUE_OPCODE={opcode.opmap['RETURN_VALUE']}", str(_SOURCE), "-o", str(made),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            messages = "\n".join(done.stderr.splitlines()[:20])
            raise CodegenError(f"the frame hook did not compile\n  {shlex.join(command)}\n{messages}")
        return made.read_bytes()
