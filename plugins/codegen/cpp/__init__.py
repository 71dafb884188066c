"""C++ kernels for the CPU: from the kernels of a schedule to source, to a shared library.

``emit`` writes one kernel, ``translation_unit`` joins the kernels and segments of a graph, ``compile_unit``
compiles (or finds) the library.  No torch header is needed; the kernels take raw pointers.  Names load on first use:
a warm start generates nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from turret.hooks.config import Option
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Target

if TYPE_CHECKING:
    from turret.ir import Schedule
    from turret.plan import Plan

_HOMES = {
    "Compiler": "compiler",
    "CppKernel": "kernel",
    "CppSegment": "unit",
    "SegmentEntry": "unit",
    "compile_unit": "compiler",
    "emit": "kernel",
    "find_compiler": "compiler",
    "function_address": "compiler",
    "load": "compiler",
    "segment": "unit",
    "translation_unit": "unit",
    "unit_key": "compiler",
}

LANGUAGE = "c++"
"""What a device has among its ``kernel_languages`` that takes these kernels."""

__all__ = [*_HOMES, "turret_codegen", "turret_options"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """The compiler, and what kernels check."""
    checks = "check every memory access of generated C++ kernels, and raise OutOfBoundsError for one outside (slow)"
    return (
        Option(name="cpp_compiler", default="", doc="C++ compiler to use; empty tries $CXX, g++, clang++"),
        Option(name="cpp_flags", default="", doc="further flags for the C++ compiler"),
        Option(name="check_bounds", default=False, doc=checks),
    )


@hookimpl
def turret_codegen(context: CompileContext, schedule: Schedule, target: Target) -> Plan | None:
    """Emit, compile (or find in the cache) and plan, for devices that run functions of the host's shared libraries."""
    if LANGUAGE not in device_for(target.device_type).kernel_languages:
        return None
    from turret.plugins.codegen.cpp.stage import codegen

    return codegen(context, schedule, target)
