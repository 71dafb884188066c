"""What compiles a lazy kernel: in a call, when sizes ask for it for the first time."""

from __future__ import annotations

import json
import time

from turret.errors import CodegenError
from turret.hooks.plugin_manager import configure, default_manager
from turret.pipeline.stage_calls import create_context
from turret.plan.launch.table import KernelBinary, LazyKernel
from turret.plugins.codegen.triton.compilation.compile import compile_requests
from turret.plugins.codegen.triton.compilation.workers import shared_pool
from turret.storage.artifact_cache import Store, open_store


def compile_lazy(kernel: LazyKernel, store: Store | None) -> tuple[KernelBinary, bytes]:
    """The kernel of a launch table's request: from the store, where compiling keeps it, or compiled by a worker.

    Observers that the process has for all compilations are told.  Raises ``CodegenError``, with the kernel's name.
    """
    manager = default_manager()
    context = create_context(configure(manager, None, {}), manager)
    request, begin = json.loads(kernel.request), time.perf_counter()
    cache = open_store() if store is None else store
    (compiled,), fresh = compile_requests([request], cache, lambda: shared_pool(context.config.compile_workers))
    assert compiled is not None  # none of the requests is optional
    parameters = len(request["parameters"]) + compiled.hidden_pointers
    if parameters > kernel.parameters or compiled.global_scratch:
        raise CodegenError(
            f"kernel {kernel.function} takes {parameters} parameters and {compiled.global_scratch} bytes of scratch "
            f"memory a program; its launch has {kernel.parameters} and none. Clear the cache: its launch table is of "
            "another version of Triton"
        )
    seconds = time.perf_counter() - begin
    said = f"{kernel.function}, which sizes asked for the first time, took {seconds:.2f} s"
    context.emit("cache_miss" if fresh else "cache_hit", stage="run", name=kernel.function, message=said)
    return compiled.binary, compiled.image
