"""C++ kernels for the CPU: from the kernels of a schedule to source, to a shared library.

``emit`` writes one kernel, ``translation_unit`` joins the kernels and segments of a graph, ``compile_unit``
compiles (or finds) the library.  No torch header is needed; the kernels take raw pointers.
"""

from turret.plugins.codegen.cpp.compiler import (
    Compiler,
    compile_unit,
    find_compiler,
    function_address,
    load,
    unit_key,
)
from turret.plugins.codegen.cpp.kernel import CppKernel, emit
from turret.plugins.codegen.cpp.stage import turret_codegen
from turret.plugins.codegen.cpp.unit import CppSegment, SegmentEntry, segment, translation_unit

__all__ = [
    "Compiler",
    "CppKernel",
    "CppSegment",
    "SegmentEntry",
    "compile_unit",
    "emit",
    "find_compiler",
    "function_address",
    "load",
    "segment",
    "translation_unit",
    "turret_codegen",
    "unit_key",
]
