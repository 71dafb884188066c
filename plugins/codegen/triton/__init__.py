"""Triton: kernels for GPUs."""

from turret.plugins.codegen.triton.across import one_pass
from turret.plugins.codegen.triton.emit import emit
from turret.plugins.codegen.triton.kernel import Config, DeviceProperties, Scratch, TritonKernel

__all__ = ["Config", "DeviceProperties", "Scratch", "TritonKernel", "emit", "one_pass"]
