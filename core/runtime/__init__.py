"""Running plans: frames of memory, native kernels, extern calls."""

from turret.runtime.executor import load

__all__ = ["load"]
