"""Triton: kernels for NVIDIA GPUs, from the kernels of a schedule to a plan that launches them.

``emit`` writes one kernel, ``KernelCompiler`` compiles many in worker processes (or finds them in the cache), and
``pack`` writes the table by which the native launcher runs them.  Nothing here imports Triton's compiler.  Names load
on first use: a warm start generates nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from turret.hooks.config import Option
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target
from turret.plan.launch.lazy_kernels import compiles
from turret.plugins.codegen.triton.language import LANGUAGE

if TYPE_CHECKING:
    from turret.ir import AttentionCandidate, ProductCandidate, Schedule
    from turret.plan import Plan
    from turret.plan.launch.table import KernelBinary, LazyKernel
    from turret.storage.artifact_cache import Store

_HOMES = {
    "CompiledKernel": "compilation.compile",
    "Config": "tiles.kernel",
    "DeviceProperties": "tiles.kernel",
    "KernelCompiler": "compilation.compile",
    "Scratch": "tiles.kernel",
    "TritonKernel": "tiles.kernel",
    "WorkerPool": "compilation.workers",
    "alternatives": "segments",
    "emit": "program",
    "one_pass": "tiles.row_column",
    "pack": "segments",
    "with_alignment": "segments",
    "shared_pool": "compilation.workers",
    "triton_version": "compilation.compile",
}

__all__ = [*_HOMES, "turret_choice_cost", "turret_codegen", "turret_decompositions", "turret_options"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def _is_for(target: Target) -> bool:
    return LANGUAGE in device_for(target.device_type).kernel_languages


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """How kernels are chosen, compiled and launched."""
    tuning = "time alternative kernels on the device and keep the fastest (GPU only)"
    workers = "processes that compile GPU kernels; 0 is one for each core"
    return (
        Option(name="max_autotune", default=False, doc=tuning),
        Option(name="compile_workers", default=0, doc=workers, low=0),
    )


@hookimpl
def turret_decompositions(context: CompileContext, target: Target) -> None:
    """Start the compile workers: this is the first that is heard of a graph for a GPU that must be compiled.

    They load Triton while the graph is still traced and scheduled.  There is nothing to say on decompositions.
    """
    if _is_for(target) and importlib.util.find_spec("triton") is not None:
        from turret.plugins.codegen.triton.compilation.workers import shared_pool

        shared_pool(context.config.compile_workers).warm()


@compiles(LANGUAGE)
def _compile_lazy(kernel: LazyKernel, store: Store | None) -> tuple[KernelBinary, bytes]:
    from turret.plugins.codegen.triton.compilation.lazy import compile_lazy

    return compile_lazy(kernel, store)


@hookimpl(tryfirst=True)
def turret_choice_cost(
    context: CompileContext, candidate: ProductCandidate | AttentionCandidate, target: Target
) -> float | None:
    """The time on the device, where that may be asked."""
    if not context.config.max_autotune or not _is_for(target):
        return None
    from turret.plugins.codegen.triton.choices import timed_cost

    return timed_cost(context, candidate, target)


@hookimpl
def turret_codegen(context: CompileContext, schedule: Schedule, target: Target) -> Plan | None:
    """Emit, compile (or find in the cache) and plan, for devices that run launch tables of Triton's binaries."""
    if not _is_for(target):
        return None
    from turret.plugins.codegen.triton.stage import codegen

    return codegen(context, schedule, target)
