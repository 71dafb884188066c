"""What Turret needs of a machine, and whether it is there."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    from turret.hooks.plugin_manager import default_manager

    codegen: Any = default_manager().get_plugin("turret.plugins.codegen.cpp")
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
        built = "this torch is built without CUDA; install a build with it, or " if torch.version.cuda is None else ""
        return Check("GPU", False, "no CUDA device", f"{built}Turret compiles for the CPU without one")
    found = torch.cuda.get_device_properties(0)
    detail = f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB"
    return Check("GPU", True, f"{detail}, {torch.cuda.device_count()} in all")


def _triton() -> Check:
    from turret.errors import TurretError
    from turret.hooks.plugin_manager import default_manager

    codegen: Any = default_manager().get_plugin("turret.plugins.codegen.triton")
    try:
        return Check("Triton", True, codegen.triton_version())
    except TurretError:
        return Check("Triton", False, "not installed", "pip install turret[gpu]")


def _native_parts() -> Check:
    """Whether each native part is built ahead of time, or left to its first use."""
    from turret.api.native_parts import parts
    from turret.storage import prebuilt

    found = {part.name: part.prebuilt() is not None for part in parts()}
    detail = ", ".join(f"{name} {'prebuilt' if ahead else 'built at first use'}" for name, ahead in found.items())
    if all(found.values()):
        return Check("native parts", True, f"{detail} ({prebuilt.folder()})")
    return Check("native parts", False, detail, "turret build, to have all of them ready for every user and process")


def _launcher() -> Check:
    """Finds or builds the launcher of GPU kernels as the runtime does, and opens the CUDA driver."""
    from turret.errors import TurretError
    from turret.plan.launch.driver_library import LAUNCHER
    from turret.storage.artifact_cache import process_cache

    try:
        LAUNCHER.load(process_cache)
    except (TurretError, OSError) as error:
        return Check("kernel launcher", False, "does not start", str(error))
    return Check("kernel launcher", True, "is there, and opens the CUDA driver")


def _cache() -> Check:
    from turret.errors import TurretError
    from turret.storage.artifact_cache import ArtifactCache

    try:
        cache = ArtifactCache()
    except TurretError as error:
        return Check("cache", False, "unusable", str(error), needed=True)
    return Check("cache", True, f"{cache.folder}, {cache.size() / 2**20:.1f} MiB", needed=True)


_CHECKS: tuple[Callable[[], Check], ...] = (
    _torch, _compiler, _openmp, _headers, _native_parts, _gpu, _triton, _launcher, _cache
)  # fmt: skip
