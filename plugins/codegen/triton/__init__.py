"""Triton: kernels for NVIDIA GPUs, from the kernels of a schedule to a plan that launches them.

``emit`` writes one kernel, ``KernelCompiler`` compiles many in worker processes (or finds them in the cache), and
``pack`` writes the table by which the native launcher runs them.  Nothing here imports Triton's compiler.
"""

from turret.plugins.codegen.triton.across import one_pass
from turret.plugins.codegen.triton.compile import CompiledKernel, KernelCompiler, triton_version
from turret.plugins.codegen.triton.emit import emit
from turret.plugins.codegen.triton.kernel import Config, DeviceProperties, Scratch, TritonKernel
from turret.plugins.codegen.triton.segments import pack, settle
from turret.plugins.codegen.triton.stage import turret_codegen, turret_decompositions
from turret.plugins.codegen.triton.workers import WorkerPool, shared_pool

__all__ = [
    "CompiledKernel",
    "Config",
    "DeviceProperties",
    "KernelCompiler",
    "Scratch",
    "TritonKernel",
    "WorkerPool",
    "emit",
    "one_pass",
    "pack",
    "settle",
    "shared_pool",
    "triton_version",
    "turret_codegen",
    "turret_decompositions",
]
