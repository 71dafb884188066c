"""Builds and loads the test device "acme", torch's PrivateUse1 in a process of its own."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import types
from pathlib import Path

import torch

from turret.artifact_cache import open_store
from turret.native import toolchain

SOURCE = Path(__file__).with_name("acme.cpp")
_TORCH = Path(torch.__file__).parent
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-w")


def built() -> bytes:
    """The shim, compiled once for a cache folder; ``CodegenError`` where there is no compiler."""
    key = hashlib.sha256(f"{torch.__version__} {_FLAGS}".encode() + SOURCE.read_bytes()).hexdigest()
    return open_store().get_or_build(key, "library", lambda: {"acme.so": _compile()})[0]["acme.so"]


def _compile() -> bytes:
    includes = (f"-I{_TORCH}/include", f"-I{_TORCH}/include/torch/csrc/api/include")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "acme.so")
        command = [*toolchain.find_command("the device acme"), *_FLAGS, *includes, str(SOURCE), "-o", str(made)]
        return toolchain.build([*command, f"-L{_TORCH}/lib", "-ltorch_cpu", "-lc10"], made, SOURCE.name)


def load() -> ctypes.CDLL:
    """Make the device known to torch, for good, and return the functions of its driver."""
    folder = tempfile.mkdtemp(prefix="acme-")
    path = Path(folder, "acme.so")
    path.write_bytes(built())
    torch.ops.load_library(str(path))
    driver = ctypes.CDLL(str(path))
    for name in ("acme_held", "acme_allocations", "acme_stream"):
        getattr(driver, name).restype = ctypes.c_int64
    driver.acme_set_stream.argtypes = (ctypes.c_int, ctypes.c_int64)
    driver.acme_owns.argtypes = (ctypes.c_void_p,)
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
