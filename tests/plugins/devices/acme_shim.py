"""Builds and loads the test device "acme", torch's PrivateUse1 in a process of its own."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

from turret.storage import toolchain
from turret.storage.artifact_cache import open_store

HERE = Path(__file__).parent
SOURCE = HERE / "acme.cpp"
_TORCH = Path(torch.__file__).parent
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-w")

_INT, _LONG, _TEXT, _ADDRESS = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # by name: what a function of the driver gives, and what it takes
    "held": (_LONG,),
    "allocations": (_LONG,),
    "stream": (_LONG, _INT),
    "set_stream": (None, _INT, _LONG),
    "device": (_INT,),
    "set_device": (None, _INT),
    "owns": (_INT, _ADDRESS),
    "pools": (_LONG,),
    "pool": (_ADDRESS, _INT),
    "pool_drop": (None, _ADDRESS),
    "pool_reserved": (_LONG, _ADDRESS),
    "pool_allocated": (_LONG, _ADDRESS),
    "pool_segment": (_LONG, _ADDRESS, ctypes.POINTER(_LONG)),
    "pool_enter": (_ADDRESS, _ADDRESS),
    "pool_checkpoint": (_LONG, _ADDRESS, _ADDRESS, _LONG),
    "pool_restore": (_TEXT, _ADDRESS, _ADDRESS, _LONG, _ADDRESS, _LONG),
    "invalidate": (None, _ADDRESS, _TEXT),
    "set_noise": (None, _INT),
    "recording": (_INT,),
    "record_begin": (None, _ADDRESS),
    "record_end": (_ADDRESS,),
    "record_kernel": (None, _TEXT, _ADDRESS, _ADDRESS, _LONG, _ADDRESS, _LONG, _ADDRESS, _LONG),
    "copy": (None, _ADDRESS, _ADDRESS, _LONG),
    "recorded_nodes": (_LONG,),
    "recording_drop": (None, _ADDRESS),
    "recording_failure": (_TEXT, _ADDRESS),
    "recording_length": (_LONG, _ADDRESS),
    "node_kind": (_TEXT, _ADDRESS, _LONG),
    "node_name": (_TEXT, _ADDRESS, _LONG),
    "node_bytes": (_LONG, _ADDRESS, _LONG),
    "node_arguments": (_ADDRESS, _ADDRESS, _LONG),
    "replay": (_TEXT, _ADDRESS),
    "recording_let_go": (None, _ADDRESS),
    "run_node": (_TEXT, _ADDRESS, _LONG, _ADDRESS),
    "rewrite_begin": (None, _ADDRESS),
    "rewrite_end": (_TEXT,),
}


def built(folder: Path | None = None) -> bytes:
    """The shim, of a cache folder (by default the user's); ``CodegenError`` where there is no compiler.

    It is compiled once, into the user's, as it takes as long as dozens of tests.
    """
    sources = b"".join(path.read_bytes() for path in sorted(HERE.glob("acme*.[ch]*")))
    key = hashlib.sha256(f"{torch.__version__} {_FLAGS}".encode() + sources).hexdigest()
    if folder is not None:
        return open_store(str(folder)).get_or_build(key, "library", lambda: {"acme.so": built()})[0]["acme.so"]
    with open(Path(tempfile.gettempdir(), f"acme-{key[:16]}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # where two processes want it at once, the second one waits
        return open_store().get_or_build(key, "library", lambda: {"acme.so": _compile()})[0]["acme.so"]


def _compile() -> bytes:
    includes = (f"-I{_TORCH}/include", f"-I{_TORCH}/include/torch/csrc/api/include")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "acme.so")
        command = [*toolchain.find_command("the device acme"), *_FLAGS, *includes, str(SOURCE), "-o", str(made)]
        return toolchain.build([*command, f"-L{_TORCH}/lib", "-ltorch_cpu", "-lc10"], made, SOURCE.name)


def load() -> ctypes.CDLL:
    """Make the device known to torch, for good, and return the functions of its driver."""
    with tempfile.TemporaryDirectory(prefix="acme-") as folder:
        path = Path(folder, "acme.so")
        path.write_bytes(built())
        torch.ops.load_library(str(path))
        driver = ctypes.CDLL(str(path))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(driver, f"acme_{name}")
        function.restype, function.argtypes = result, arguments
    torch.utils.rename_privateuse1_backend("acme")
    torch._register_device_module("acme", _module(driver))
    torch.utils.generate_methods_for_privateuse1_backend()
    return driver


def _module(driver: ctypes.CDLL) -> types.ModuleType:
    """What torch calls in Python for a device of its own."""
    module = types.ModuleType("torch.acme")
    module.is_available = lambda: True
    module.device_count = lambda: 2
    module.current_device = driver.acme_device
    module.set_device = driver.acme_set_device
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    return module
