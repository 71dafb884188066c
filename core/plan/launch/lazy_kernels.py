"""Kernels of a launch table that are compiled when sizes first ask for them.

A run that wants such a kernel launches nothing of its segment and says so by its status (``Status.NOT_COMPILED``, with
the kernel's number in this process).  Whoever ran it has the kernel compiled, once for all plans and threads, and runs
again.  What compiles kernels of a language enters itself (``compiles``); it finds and keeps binaries in the store that
the plan was loaded from, so that other processes compile no more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from turret.errors import CodegenError
from turret.plan.launch.enums import Status
from turret.plan.launch.table import KernelBinary, LazyKernel
from turret.storage.artifact_cache import Store
from turret.storage.fork_safety import Lock

KernelCompiler = Callable[[LazyKernel, Store | None], tuple[KernelBinary, bytes]]
"""The binary of a kernel, from a store (None: the default cache) or compiled into it; raises ``CodegenError``."""

_compilers: dict[str, KernelCompiler] = {}
_kernels: dict[tuple[int, LazyKernel], _Kernel] = {}
_numbered: list[_Kernel] = []
_lock = Lock()


def compiles(language: str) -> Callable[[KernelCompiler], KernelCompiler]:
    """Decorator: has a function compile the lazy kernels of a language."""

    def entered(function: KernelCompiler) -> KernelCompiler:
        _compilers[language] = function
        return function

    return entered


def binary_arguments(binary: KernelBinary, image: bytes) -> tuple[Any, ...]:
    """Image, threads, shared memory, cluster and how a kernel is launched, as the launcher takes them."""
    cluster = (ctypes.c_int64 * 3)(*binary.cluster)
    how = int(binary.cooperative), int(binary.programmatic)
    return image, len(image), binary.threads, binary.shared, cluster, *how


class _Kernel:
    """One lazy kernel of a launcher, which compiles it at most once."""

    def __init__(self, library: ctypes.CDLL, kernel: LazyKernel, store: Store | None, number: int) -> None:
        self._library, self._kernel, self._store, self._lock = library, kernel, store, Lock()
        self._is_defined = False
        self.handle: int = library.turret_lazy_kernel(number, kernel.function.encode())

    def define(self) -> None:
        """Compile it, unless that was done; who comes meanwhile waits.  Raises ``CodegenError``; the next call tries
        again."""
        with self._lock:
            if self._is_defined:
                return
            compiler = _compilers.get(self._kernel.language)
            if compiler is None:
                raise CodegenError(
                    f"nothing here compiles kernels of {self._kernel.language!r}, and {self._kernel.function} is "
                    "wanted for the first time"
                )
            binary, image = compiler(self._kernel, self._store)
            self._library.turret_define_kernel(self.handle, *binary_arguments(binary, image))
            self._is_defined = True


def lazy_kernel(library: ctypes.CDLL, kernel: LazyKernel, store: Store | None) -> int:
    """The launcher's handle of a kernel that is not compiled yet, or was since; one for all plans that have it."""
    key = (library._handle, kernel)
    with _lock:
        if key not in _kernels:
            made = _kernels[key] = _Kernel(library, kernel, store, len(_numbered))
            _numbered.append(made)
        return _kernels[key].handle


def compile_missing(status: int) -> bool:
    """Compile the kernel that a run says is not compiled, so that it can run again; False for any other status.

    Raises ``CodegenError``, with the kernel's name.
    """
    if status & 0xFF != Status.NOT_COMPILED:
        return False
    _numbered[status >> 8].define()
    return True
