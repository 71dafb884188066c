"""A process with Triton's interpreter, which changes Triton's language for good: launches of kernels, captured.

Prints one line for each program: its name, and whether results, arguments and graphs are as they should be.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    found = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask) * scale
    tl.store(out_ptr + offsets, found, mask=mask)


@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr, kind: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, (value * 2).to(kind), mask=offsets < n)


tuned = triton.heuristics({"BLOCK": lambda given: 8 if given["n"] < 20 else 16})(add)


@torch.library.triton_op("turret_kernel_lab::added", mutates_args={})
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), 1.0, BLOCK=16)
    return out


def by_position(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 16),)](x.sin(), y, out, x.numel(), 2.0, 16)
    return out.cos()


def by_a_function(x, y):
    out = torch.zeros_like(x)
    add[lambda given: (triton.cdiv(given["n"], given["BLOCK"]), 1)](x, y, out, x.numel(), scale=0.5, BLOCK=16)
    return out + x


def in_place(x, y):
    view = x[2:]
    double[(triton.cdiv(view.numel(), 16),)](view, view.numel(), BLOCK=16, kind=tl.float32)
    return x + y


def over_known_numbers(x, y):
    ones = torch.ones(3)
    double[(1,)](ones, 3, BLOCK=16, kind=tl.float32)
    return x + ones[1], ones.tolist() if not torch.compiler.is_compiling() else [2.0, 2.0, 2.0]


def tuned_by_arguments(x, y):
    out = torch.empty_like(x)
    tuned[lambda given: (triton.cdiv(given["n"], given["BLOCK"]),)](x, y, out, x.numel(), 1.0)
    return out * 2


def operator(x, y):
    return added(x + 1, y) * 2


def twice(x, y):
    first, second = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 16),)
    add[grid](x, y, first, x.numel(), 1.0, BLOCK=16)
    add[grid](first, y, second, x.numel(), 1.0, BLOCK=16)
    return first, second


PROGRAMS = (
    by_position, by_a_function, in_place, over_known_numbers, tuned_by_arguments, operator, twice,
)  # fmt: skip


def compare(program, run, size):
    mine, theirs = ([torch.arange(float(size)) / size, torch.ones(size)] for _ in range(2))
    found, expected = run(*mine), program(*theirs)
    for one, other in zip((found, *mine), (expected, *theirs), strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert_same(one, other)


def main():
    for program in PROGRAMS:
        for dynamic in (None, True):
            observed = Observed(program, fullgraph=True, dynamic=dynamic)
            options = {"cache": False, "on_error": "raise"}
            compiled = turret.compile(program, fullgraph=True, dynamic=dynamic, options=options)
            for size in (20, 20, 37):
                compare(program, observed, size)
                if dynamic is None and size == 20:
                    compare(program, compiled, size)
            launches = [n for g in observed.graphs for n in g.module.graph.nodes if "launch" in str(n.target)]
            print(program.__name__, dynamic, len(observed.graphs), len(launches))
    leaf = torch.ones(20, requires_grad=True)
    for program in (by_position, operator):
        found = turret.compile(program)(leaf, torch.ones(20))
        print(program.__name__, found.requires_grad, program(leaf, torch.ones(20)).requires_grad)


if __name__ == "__main__":
    main()
