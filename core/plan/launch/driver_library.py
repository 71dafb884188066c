"""Shared libraries that work through the CUDA driver: small, built ahead of time or compiled once into the cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from turret.errors import CodegenError
from turret.plan.launch.enums import NodeKind, Operation, ParameterKind, PartKind, Status
from turret.storage import prebuilt, toolchain
from turret.storage.artifact_cache import Store, open_store
from turret.storage.fork_safety import Lock
from turret.storage.libraries import ROLE, open_library
from turret.storage.native_enums import Enums, header_text, write_header

DRIVER = "libcuda.so.1"
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-w")
_lock = Lock()
_loaded: dict[str, ctypes.CDLL] = {}


@attrs.frozen
class DriverLibrary:
    """One source, which opens the driver at run time, what its functions give and take, and the enums that it includes.

    ``purpose`` is named in errors.  Any C++17 compiler makes a library that will do, so that a machine whose compiler
    went away still starts.
    """

    purpose: str
    source: Path
    prototypes: Mapping[str, tuple[Any, ...]]
    enums: Enums = ()

    @functools.cached_property
    def file(self) -> str:
        return f"{self.source.stem}.so"

    def key(self) -> str:
        """Its address, ahead of time or in the cache: that of its source, enums and the flags."""
        what = f"{self.source.stem} {platform.machine()} {_FLAGS}\n{header_text(self.enums)}"
        return hashlib.sha256(what.encode() + self.source.read_bytes()).hexdigest()

    def build(self, store: Store | None = None) -> bytes:
        """The library: built ahead of time, from a store (None: the default cache), or compiled into it.

        Raises ``CodegenError`` where it must be compiled and cannot.
        """
        address = self.key()
        found = prebuilt.find(address, self.file)
        if found is not None:
            return found.read_bytes()
        store = open_store() if store is None else store
        return store.get_or_build(address, ROLE, lambda: {self.file: self.compile()})[0][self.file]

    def load(self, store: Store | None = None) -> ctypes.CDLL:
        """The library, loaded once a process, with the driver open; ``CodegenError`` where either is missing."""
        with _lock:
            if self.file not in _loaded:
                _loaded[self.file] = self.open(open_library(self.build(store), self.source.stem), DRIVER)
            return _loaded[self.file]

    def open(self, library: ctypes.CDLL, driver: str) -> ctypes.CDLL:
        """Declare its functions and have it open a driver; ``CodegenError`` where that does not do."""
        for name, (result, *arguments) in {**_COMMON, **self.prototypes}.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, tuple(arguments)
        if library.turret_open(driver.encode()):
            raise CodegenError(message(library))
        return library

    def compile(self) -> bytes:
        """The library, compiled; needs a C++ compiler and no GPU.  Raises ``CodegenError``."""
        compiler = toolchain.find_command(f"the {self.purpose}")
        with tempfile.TemporaryDirectory(prefix="turret-native-") as scratch:
            made = Path(scratch, self.file)
            command = [*compiler, *_FLAGS, write_header(scratch, self.enums), "-o", str(made), str(self.source), "-ldl"]
            return toolchain.build(command, made, self.source.name)


def message(library: ctypes.CDLL) -> str:
    """What went wrong in the last call of this thread."""
    text: bytes = library.turret_message()
    return text.decode(errors="replace")


_POINTER, _INT, _LONG, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_COMMON = {"turret_open": (_INT, _TEXT), "turret_message": (_TEXT,)}

LAUNCHER = DriverLibrary(
    "kernel launcher",
    Path(__file__).with_name("launcher.cpp"),
    {
        "turret_kernel": (_POINTER, _TEXT, _LONG, _TEXT, _INT, _LONG, _POINTER, _INT, _INT),
        "turret_lazy_kernel": (_POINTER, _LONG, _TEXT),
        "turret_define_kernel": (None, _POINTER, _TEXT, _LONG, _INT, _LONG, _POINTER, _INT, _INT),
        "turret_segment": (_POINTER, _INT, _POINTER, _LONG, _POINTER, _LONG, _LONG, _LONG),
        "turret_segment_free": (None, _POINTER),
        "turret_segment_prepare": (_INT, _POINTER),
        "turret_segment_run": (_LONG, _POINTER, _POINTER, _POINTER, _POINTER),
        "turret_sequence": (_POINTER, _INT, _POINTER, _LONG, _POINTER, _LONG, _LONG),
        "turret_sequence_free": (None, _POINTER),
        "turret_sequence_run": (_LONG, _POINTER, _POINTER, _POINTER, _POINTER),
        "turret_redirect": (None, _POINTER, _POINTER, _POINTER, _POINTER),
        "turret_copy": (_LONG, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, _POINTER),
    },
    (Operation, ParameterKind, PartKind, Status),
)
"""Runs the kernels of a plan."""

GRAPHS = DriverLibrary(
    "graph patcher",
    Path(__file__).with_name("graphs.cpp"),
    {
        "turret_make_stream": (_POINTER, _INT),
        "turret_begin_capture": (_INT, _INT, _POINTER),
        "turret_captured_nodes": (_LONG, _INT, _POINTER),
        "turret_clear_stack": (None,),
        "turret_graph": (_POINTER, _INT, _POINTER),
        "turret_graph_executable": (None, _POINTER, _POINTER),
        "turret_graph_free": (None, _POINTER),
        "turret_graph_length": (_LONG, _POINTER),
        "turret_node_kind": (_INT, _POINTER, _LONG),
        "turret_node_name": (_TEXT, _POINTER, _LONG),
        "turret_node_bytes": (_LONG, _POINTER, _LONG),
        "turret_node_arguments": (_POINTER, _POINTER, _LONG),
        "turret_node_launch": (_LONG, _POINTER, _LONG, _POINTER, _LONG),
        "turret_graph_patch": (_INT, _POINTER, _POINTER, _POINTER, _LONG),
        "turret_binding": (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _LONG),
        "turret_binding_free": (None, _POINTER),
        "turret_graph_replay": (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _INT),
        "turret_rewrite_begin": (None, _POINTER),
        "turret_rewrite_kernel": (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _LONG),
        "turret_rewrite_clear": (_INT, _POINTER, ctypes.c_uint64, ctypes.c_uint64),
        "turret_rewrite_copy": (_INT, _POINTER, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
        "turret_rewrite_end": (_INT, _POINTER, _POINTER),
        "turret_rewrite_refusal": (_TEXT, _POINTER),
        "turret_rewritten": (_LONG, _POINTER),
    },
    (NodeKind,),
)
"""Reads captured graphs, and replays them over other memory."""
