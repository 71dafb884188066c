"""Rows that begin anywhere: in whole vectors and two ends, right for any length and place, and in wide instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from unittest import mock

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.codegen.triton.triton_lab import compile_offline, waits_before_it_touches_memory
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel
from turret.plugins.codegen.triton.tiles import tiling

BF16 = torch.bfloat16
LENGTHS = (*range(1, 26), 39, 40, 41, 127, 129, 4097)
SHORT = {"SHORTEST_EDGED": 1, "SHORTEST_WALKED": 1}
"""Rows of any length have edges, and are walked where they share much."""
PASSES = {"PERSISTENT_INNER": 4, "LONGEST_PLAIN": 4}


def rms_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


PROGRAMS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "softmax": lambda x, w, b: torch.softmax(x, -1),
    "log of a softmax in float32": lambda x, w, b: torch.log_softmax(x.float(), -1),
    "RMS norm": rms_norm,
    "layer norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "sums, maxima and moments": lambda x, w, b: (
        x.float().sum(-1),
        x.amax(-1),
        *torch.var_mean(x.float(), -1, correction=0),
    ),
    "any and all": lambda x, w, b: ((x > 1).any(-1), (x > -1).all(-1)),
    "two inputs": lambda x, w, b: torch.softmax(x * 0.5 + x.flip(0), -1) * w,
    "positions in the row": lambda x, w, b: torch.softmax(x.float() + torch.arange(x.shape[-1]) * 0.01, -1),
}


def compiled(
    run: Callable[..., object], dynamic: bool, changes: dict[str, int], multiprocessors: int = 0
) -> tuple[Callable[..., object], InterpretedCodegen]:
    generator = InterpretedCodegen(properties=DeviceProperties((9, 0), multiprocessors))
    options = {"cache": False, "on_error": "raise"}
    made = turret.compile(run, dynamic=dynamic, plugins=[generator], options=options)

    def call(*args: Tensor) -> object:
        with mock.patch.dict(vars(tiling), changes), torch.no_grad():
            return made(*args)

    return call, generator


def compare(got: object, want: object) -> None:
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for mine, theirs in pairs:
        assert mine.dtype == theirs.dtype
        near = 2e-2 if theirs.dtype == BF16 else 2e-5
        torch.testing.assert_close(mine, theirs, rtol=near, atol=near)


def matrices(rows: int, columns: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Rows that follow one another, some with a gap between them, and some that begin later in their memory."""
    yield torch.randn(rows, columns).to(dtype)
    yield torch.randn(rows, columns + 3).to(dtype)[:, :columns]
    yield torch.randn(rows, columns + 5).to(dtype)[:, 2 : columns + 2]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("passes", [False, True])
def test_rows_of_any_length_are_right(program: str, passes: bool) -> None:
    run, changes = PROGRAMS[program], SHORT | (PASSES if passes else {})
    made, _ = compiled(run, True, changes)
    for columns in (33, *LENGTHS):
        rows = 2 if columns > 1000 else 10
        x, w, b = (torch.randn(shape).to(BF16) for shape in ((rows, columns), columns, columns))
        compare(made(x, w, b), run(x, w, b))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.thorough
def test_rows_of_known_length_are_right_wherever_they_begin(program: str, dtype: torch.dtype) -> None:
    run = PROGRAMS[program]
    for columns in (7, 8, 9, 33, 513):
        for x in matrices(9, columns, dtype):
            for changes in (SHORT, SHORT | PASSES):
                turret.reset()
                made, _ = compiled(run, False, changes)
                w, b = torch.randn(2, columns).to(dtype).unbind()
                compare(made(x, w, b), run(x, w, b))


def kernels(run: Callable[..., object], *args: Tensor, dynamic: bool) -> list[TritonKernel]:
    """What is generated for an H200, and not run."""
    made, generator = compiled(run, dynamic, {}, multiprocessors=132)
    with mock.patch("tests.plugins.codegen.triton.interpreted_codegen.launch"):
        made(*args)
    return list(generator.kernels.values())


def accesses(kernel: TritonKernel) -> list[str]:
    """The accesses to global memory in a kernel's code, such as ``ld.v4.b32``."""
    pointers = frozenset(kernel.parameters[: len(kernel.buffers)])
    text = compile_offline(attrs.evolve(kernel, divisible=kernel.divisible | pointers)).asm["ptx"]
    return [f"{kind}{rest}" for kind, rest in re.findall(r"\b(ld|st)\.global([.\w]*)", text)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", ["softmax", "RMS norm", "layer norm"])
@pytest.mark.parametrize("columns", [4095, 4097])
def test_rows_that_begin_anywhere_move_in_vectors(program: str, columns: int, dynamic: bool) -> None:
    x, w, b = (torch.empty(shape, dtype=BF16) for shape in ((8191, columns), columns, columns))
    shared = {"softmax": 0, "RMS norm": 1, "layer norm": 2}[program]
    for kernel in kernels(PROGRAMS[program], x, w, b, dynamic=dynamic):
        found, (block, *_) = accesses(kernel), (dict(c.constants)["RBLOCK"] for c in kernel.configs)
        lanes = 32 * kernel.configs[0].num_warps
        assert block == 4096, "as many as the vectors of a row have"
        assert found.count("ld.v4.b32") >= block // 8 // lanes and found.count("st.v4.b32") >= block // 8 // lanes
        assert found.count("st.b16") == 1, "the ends are one element a lane"
        if "for roffset" not in kernel.source:
            assert found.count("ld.b16") <= shared * (block // lanes + 1) + 2


def test_rows_as_wide_as_vectors_have_no_edges() -> None:
    x = torch.empty(8192, 4096, dtype=BF16)
    assert not any("edge" in k.source for k in kernels(PROGRAMS["softmax"], x, x[0], x[0], dynamic=False))
    fast, *others = kernels(PROGRAMS["softmax"], x, x[0], x[0], dynamic=True)
    assert "edge" not in fast.source and fast.divisible and all("edge" in k.source for k in others)


def test_rows_that_begin_unlike_one_another_have_no_edges() -> None:
    """A lane that holds neighbours of one is far from those of its own row of the other."""
    x, y = torch.empty(8191, 4095, dtype=BF16), torch.empty(8191, 4098, dtype=BF16)[:, :4095]
    (kernel,) = kernels(lambda x, y: torch.softmax(x + y, -1), x, y, dynamic=False)
    assert "edge" not in kernel.source


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_reads_once_what_many_rows_share(dynamic: bool) -> None:
    x, w, b = (torch.empty(shape, dtype=BF16) for shape in ((16383, 4095), 4095, 4095))
    kernel = kernels(PROGRAMS["layer norm"], x, w, b, dynamic=dynamic)[0]
    before, loop = kernel.source.split("    for x in range(")
    assert len(re.findall(r"tl\.load\(p1 \+", before)) == 2 and "tl.load(p1 +" not in loop
    assert "PROGRAMS" in kernel.grid[0] and dict(kernel.configs[0].constants)["PROGRAMS"] % 8 == 0
    assert waits_before_it_touches_memory(compile_offline(kernel))
    for rows in (1, 7, 8, 9, 4000, 16383):
        (rows_text,) = re.findall(r"cdiv\((\w+), 8\)", kernel.grid[0])
        (programs, *_) = kernel.grid_for(kernel.configs[0], {rows_text: rows})
        assert dynamic is not rows_text.isdigit()
        assert programs == (min(792, -(-rows // 8) * 8) if dynamic else 792)
