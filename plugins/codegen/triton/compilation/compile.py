"""Compiling Triton kernels: each distinct one once, in parallel, and never again while the cache has it.

Nothing here imports the Triton compiler: it lives in the worker processes, and only those of a cold start.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

import attrs

from turret.errors import CodegenError
from turret.plan.launch.table import KernelBinary, LazyKernel
from turret.plugins.codegen.triton.compilation.workers import WorkerPool
from turret.plugins.codegen.triton.language import LANGUAGE
from turret.plugins.codegen.triton.tiles.kernel import Config, TritonKernel
from turret.storage.artifact_cache import Store

WARP = 32
ROLE = "kernel"
_IMAGE, _FACTS, _SOURCE = "kernel.cubin", "kernel.json", "kernel.py"


@attrs.frozen
class CompiledKernel:
    """A kernel's binary and what its launch needs to know.

    ``key`` is its content address.  ``shared``: bytes of dynamic shared memory.  ``hidden_pointers``: how many
    pointers to Triton's own scratch memory follow the kernel's parameters; the first is to ``global_scratch`` bytes
    for each program.
    """

    key: str
    image: bytes = attrs.field(repr=False)
    function: str
    num_warps: int
    shared: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    programmatic: bool = False
    hidden_pointers: int = 2
    global_scratch: int = 0

    def scratch_bytes(self, grid: tuple[int, int, int]) -> int:
        """Bytes of Triton's own scratch memory that so many programs work in."""
        return math.prod((*grid, *self.cluster)) * self.global_scratch if self.hidden_pointers else 0

    @property
    def binary(self) -> KernelBinary:
        """Its entry in a launch table, with its image in a file named after the key."""
        file, threads = f"{self.key[:24]}.cubin", WARP * self.num_warps
        return KernelBinary(
            self.function, file, threads, self.shared, self.cluster, self.cooperative, self.programmatic
        )


Variant = tuple[TritonKernel, Config]
"""A kernel in one of its configurations: what is compiled."""


@attrs.frozen
class DeferredKernel:
    """A kernel that nobody compiles before sizes ask for it, and what a launch of it is told of the compiled one.

    ``key`` and ``request`` are as for those that are compiled (``request_of``); ``hidden_pointers`` are those of the
    kernels beside it, from the same compiler.  It is handed no memory of Triton's own: no kernel of symbolic sizes asks
    for some.
    """

    key: str
    request: dict[str, Any] = attrs.field(repr=False)
    hidden_pointers: int

    @property
    def lazy(self) -> LazyKernel:
        """Its entry in a launch table."""
        parameters = len(self.request["parameters"]) + self.hidden_pointers
        return LazyKernel(self.request["name"], LANGUAGE, json.dumps(self.request, sort_keys=True), parameters)


Launchable = CompiledKernel | DeferredKernel


@functools.cache
def triton_version() -> str:
    """The installed Triton's version; ``CodegenError`` where there is none."""
    for name in ("triton", "pytorch-triton"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    specification = importlib.util.find_spec("triton")
    if specification is None or specification.origin is None:
        raise CodegenError("Triton is not installed; pip install turret[gpu], or run this model on the CPU")
    return hashlib.sha256(Path(specification.origin).read_bytes()).hexdigest()


def request_of(variant: Variant, backend: str, arch: int) -> dict[str, Any]:
    """What a worker is asked: all that the binary depends on except the compiler's version."""
    kernel, config = variant
    options = {"enable_fp_fusion": False, **kernel.options}  # two roundings, as of two kernels
    options |= {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return {
        "source": kernel.source,
        "name": kernel.name,
        "parameters": list(kernel.parameters),
        "signature": {p: kernel.signature[p] for p in kernel.parameters},
        "constants": dict(config.constants),
        "divisible": sorted(kernel.divisible),
        "options": options,
        "backend": backend,
        "arch": arch,
    }


def request_key(request: dict[str, Any]) -> str:
    """Content address of the kernel that a request compiles to."""
    text = json.dumps([triton_version(), request], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class KernelCompiler:
    """Compiles variants for one compute capability (``arch`` 90 is 9.0) of a backend of Triton's."""

    def __init__(self, backend: str, arch: int, cache: Store, pool: Callable[[], WorkerPool]) -> None:
        self.backend, self.arch, self.cache, self.pool = backend, arch, cache, pool

    def compile(
        self,
        variants: Iterable[Variant],
        progress: Callable[[int, int], None] = lambda done, wanted: None,
        optional: Collection[str] = (),
    ) -> tuple[list[CompiledKernel | None], int]:
        """Each variant compiled, in order, and how many had to be: as ``compile_requests``."""
        requests = [request_of(variant, self.backend, self.arch) for variant in variants]
        return compile_requests(requests, self.cache, self.pool, progress, optional)

    def deferred(self, variant: Variant, hidden_pointers: int) -> Launchable:
        """A variant from the cache, else to be compiled later; it is launched with so many ``hidden_pointers``."""
        request = request_of(variant, self.backend, self.arch)
        key = request_key(request)
        return _stored(self.cache, key) or DeferredKernel(key, request, hidden_pointers)


def compile_requests(
    requests: Iterable[dict[str, Any]],
    cache: Store,
    pool: Callable[[], WorkerPool],
    progress: Callable[[int, int], None] = lambda done, wanted: None,
    optional: Collection[str] = (),
) -> tuple[list[CompiledKernel | None], int]:
    """The kernel of each request (``request_of``), in order, and how many had to be compiled.

    ``progress(done, wanted)`` is told as kernels are done.  Raises ``CodegenError`` for the first that fails; where it
    is one of the ``optional`` kernels, there is None in its place.
    """
    keyed = [(request_key(request), request) for request in requests]
    stored = {key: _stored(cache, key) for key in dict(keyed)}
    made: dict[str, CompiledKernel | None] = {key: kernel for key, kernel in stored.items() if kernel is not None}
    missing = {key: request for key, request in keyed if key not in made}
    waiting: dict[Future, str] = {pool().submit(request): key for key, request in missing.items()}
    for done, future in enumerate(as_completed(waiting), 1):
        key = waiting[future]
        try:
            made[key] = _store(cache, key, missing[key]["source"], future.result())
        except CodegenError:
            if missing[key]["name"] not in optional:
                raise
            made[key] = None
        progress(done, len(missing))
    return [made[key] for key, _ in keyed], len(missing)


def _stored(cache: Store, key: str) -> CompiledKernel | None:
    entry = cache.get(key, ROLE)
    return None if entry is None else _kernel(key, json.loads(entry[_FACTS]), entry[_IMAGE])


def _store(cache: Store, key: str, source: str, answer: dict[str, Any]) -> CompiledKernel:
    image = base64.b64decode(answer.pop("image"))
    cache.keep(key, ROLE, {_IMAGE: image, _FACTS: json.dumps(answer).encode(), _SOURCE: source.encode()})
    return _kernel(key, answer, image)


def _kernel(key: str, facts: dict[str, Any], image: bytes) -> CompiledKernel:
    return CompiledKernel(key=key, image=image, **{**facts, "cluster": tuple(facts["cluster"])})
