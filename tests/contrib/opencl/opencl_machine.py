"""Whether this machine has an OpenCL that compiles programs; tests that need one are skipped without it."""

from __future__ import annotations

import functools

import pytest

NEEDS = "turret[opencl] brings pyopencl and PoCL, for Linux on x86-64"


def require_opencl() -> None:
    """Skip the caller where there is no OpenCL, or where its compiler does not work."""
    pytest.importorskip("pyopencl", reason=NEEDS)
    fault = _fault()
    if fault:
        pytest.skip(f"the OpenCL of this machine compiles nothing: {fault}", allow_module_level=True)


@functools.cache
def _fault() -> str:
    """What keeps the smallest program from being compiled: PoCL 3.0 knows no processors that are newer than LLVM 14."""
    import pyopencl

    try:
        context = pyopencl.create_some_context(interactive=False)
        pyopencl.Program(context, "__kernel void nothing() {}").build()
    except pyopencl.Error as error:
        return next((line for line in str(error).splitlines() if line.startswith("error:")), str(error))
    return ""
