"""What Turret needs of a machine, and whether it is there."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Callable
from pathlib import Path

import attrs


@attrs.frozen
class Check:
    """One thing looked at: found or not, what was found, and how to get it; ``needed`` for the CPU pipeline."""

    name: str
    works: bool
    detail: str
    remedy: str = ""
    needed: bool = False


def checks() -> list[Check]:
    """All checks, in the order in which they are printed."""
    return [check() for check in _CHECKS]


def _torch() -> Check:
    import torch

    return Check("torch", True, torch.__version__, needed=True)


def _compiler() -> Check:
    """Compiles and loads a kernel library in the way that the C++ code generator does."""
    from turret.errors import TurretError
    from turret.plugin_manager import default_manager

    codegen = default_manager().get_plugin("turret.plugins.codegen.cpp")
    try:
        compiler = codegen.find_compiler()
        library, _ = codegen.compile_unit('extern "C" int turret_doctor() { return 0; }', compiler)
        codegen.load(library)
    except TurretError as error:
        return Check("C++ compiler", False, "none works", str(error), needed=True)
    return Check("C++ compiler", True, f"{compiler.version} ({compiler.path})", needed=True)


def _openmp() -> Check:
    import torch

    works = torch.backends.openmp.is_available()
    return Check("OpenMP", works, f"{torch.get_num_threads()} threads", "install a torch build with OpenMP")


def _headers() -> Check:
    path = Path(sysconfig.get_paths()["include"], "Python.h")
    remedy = "install them (Debian and Ubuntu: apt install python3-dev); the native core needs them"
    return Check("Python headers", path.exists(), str(path), remedy)


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("GPU", False, "no CUDA device", "Turret compiles for the CPU without one")
    return Check("GPU", True, torch.cuda.get_device_name())


def _triton() -> Check:
    found = importlib.util.find_spec("triton") is not None
    return Check("Triton", found, "installed" if found else "not installed", "pip install turret[gpu]")


def _cache() -> Check:
    from turret.artifact_cache import ArtifactCache
    from turret.errors import TurretError

    try:
        cache = ArtifactCache()
    except TurretError as error:
        return Check("cache", False, "unusable", str(error), needed=True)
    return Check("cache", True, f"{cache.folder}, {cache.size() / 2**20:.1f} MiB", needed=True)


_CHECKS: tuple[Callable[[], Check], ...] = (_torch, _compiler, _openmp, _headers, _gpu, _triton, _cache)
