"""Building the launcher: one small shared library, built ahead of time or compiled once into the artifact cache."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import tempfile
from pathlib import Path

from turret.artifact_cache import Store, open_store
from turret.errors import CodegenError
from turret.fork_safety import Lock
from turret.libraries import ROLE, open_library
from turret.native import prebuilt, toolchain

SOURCE = Path(__file__).with_name("launcher.cpp")
LIBRARY = "launcher.so"
DRIVER = "libcuda.so.1"
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-w")
_lock = Lock()
_loaded: list[ctypes.CDLL] = []


def key() -> str:
    """The address of the launcher: that of its source and the flags.

    Any C++17 compiler makes a library that will do, so that a machine whose compiler went away still starts.
    """
    return hashlib.sha256(f"launcher {platform.machine()} {_FLAGS}\n".encode() + SOURCE.read_bytes()).hexdigest()


def build(store: Store | None = None) -> bytes:
    """The launcher's shared library: built ahead of time, from a store (None: the default cache), or compiled into it.

    Raises ``CodegenError`` where it must be compiled and cannot.
    """
    address = key()
    found = prebuilt.find(address, LIBRARY)
    if found is not None:
        return found.read_bytes()
    store = open_store() if store is None else store
    return store.get_or_build(address, ROLE, lambda: {LIBRARY: compile_launcher()})[0][LIBRARY]


def launcher(store: Store | None = None) -> ctypes.CDLL:
    """The launcher, loaded once a process, with the CUDA driver open; ``CodegenError`` where either is missing."""
    with _lock:
        if not _loaded:
            _loaded.append(open_launcher(open_library(build(store), "launcher"), DRIVER))
        return _loaded[0]


def open_launcher(library: ctypes.CDLL, driver: str) -> ctypes.CDLL:
    """Declare a launcher's functions and have it open a driver library."""
    for name, (result, *arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, tuple(arguments)
    if library.turret_open(driver.encode()):
        raise CodegenError(message(library))
    return library


def message(library: ctypes.CDLL) -> str:
    """What went wrong in the last call of this thread."""
    return library.turret_message().decode(errors="replace")


_POINTER = ctypes.c_void_p
_PROTOTYPES: dict[str, tuple] = {
    "turret_open": (ctypes.c_int, ctypes.c_char_p),
    "turret_message": (ctypes.c_char_p,),
    "turret_kernel": (
        _POINTER,
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int64,
        _POINTER,
        ctypes.c_int,
        ctypes.c_int,
    ),
    "turret_segment": (
        _POINTER,
        ctypes.c_int,
        _POINTER,
        ctypes.c_int64,
        _POINTER,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
    ),
    "turret_segment_free": (None, _POINTER),
    "turret_segment_prepare": (ctypes.c_int, _POINTER),
    "turret_segment_run": (ctypes.c_int64, _POINTER, _POINTER, _POINTER, _POINTER),
}


def compile_launcher() -> bytes:
    """The library, compiled; needs a C++ compiler and no GPU.  Raises ``CodegenError``."""
    compiler = toolchain.find_command("the kernel launcher")
    with tempfile.TemporaryDirectory(prefix="turret-launcher-") as scratch:
        made = Path(scratch, LIBRARY)
        return toolchain.build([*compiler, *_FLAGS, "-o", str(made), str(SOURCE), "-ldl"], made, SOURCE.name)
