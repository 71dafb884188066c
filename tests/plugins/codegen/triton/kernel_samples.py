"""Triton kernels written by hand, for tests of compiling and launching."""

from __future__ import annotations

import attrs

from turret.plugins.codegen.triton import Config, TritonKernel

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def {name}(x, y, n, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * {factor}, i < n)
"""


def scale(factor: float = 2.0, name: str = "scale", **changes: object) -> TritonKernel:
    kernel = TritonKernel(
        name=name,
        source=SOURCE.format(name=name, factor=factor),
        buffers=("a", "b"),
        sizes=("s0",),
        parameters=("x", "y", "n"),
        signature={"x": "*fp32", "y": "*fp32", "n": "i32"},
        divisible=frozenset({"x", "y"}),
        configs=(Config((("XBLOCK", 1024),)), Config((("XBLOCK", 256),), num_warps=2)),
        grid=("cdiv(s0, XBLOCK)",),
        stored=("b",),
    )
    return attrs.evolve(kernel, **changes)


def variant(kernel: TritonKernel, number: int = 0) -> tuple[TritonKernel, Config]:
    return kernel, kernel.configs[number]
