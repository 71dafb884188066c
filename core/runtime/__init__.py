"""Running plans: frames of memory, native kernels, extern calls."""

from turret.runtime.executor import fits_device, load

__all__ = ["fits_device", "load"]
