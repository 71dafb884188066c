"""Products whose last tiles are divided over programs must show what eager shows, however steps are divided."""

from __future__ import annotations

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.triton.test_products import EPILOGUES, agrees, compiled, randn
from tests.plugins.codegen.triton.tile_loops.test_tile_loops import (
    AMPERE,
    HOPPER,
    SETTINGS,
    gated,
    linear,
    looped,
    loops_of,
    small_tiles,
)
from tests.plugins.codegen.triton.triton_lab import compile_offline, waits_before_it_touches_memory
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel


def divided(kernels: list[TritonKernel]) -> list[TritonKernel]:
    return [kernel for kernel in kernels if "tl.atomic_add" in kernel.source]


@settings(SETTINGS, max_examples=12)
@given(
    rows=st.integers(3, 7).map(lambda n: 8 * n),
    columns=st.integers(3, 7).map(lambda n: 8 * n),
    depth=st.sampled_from((64, 72, 104, 200)),
    batch=st.sampled_from((0, 0, 2)),
    epilogue=st.sampled_from(sorted(EPILOGUES)),
    programs=st.sampled_from((2, 4, 5, 7, 11)),
    capability=st.sampled_from((HOPPER, AMPERE)),
)
def test_products_are_eagers_however_many_programs_share_them(
    rows: int, columns: int, depth: int, batch: int, epilogue: str, programs: int, capability: tuple[int, int]
) -> None:
    lead = (batch,) if batch else ()
    a, b = randn(*lead, rows, depth), randn(*lead, depth, columns, seed=1)
    bias, residual = randn(columns), randn(*lead, rows, columns, seed=3)

    def function(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return EPILOGUES[epilogue](a @ b, bias, residual)

    made = looped(function, capability, rival=1, programs=programs)
    with small_tiles():
        agrees(made, function, a, b, bias, residual)


@pytest.mark.parametrize(("programs", "is_divided"), [(7, True), (6, True), (9, False), (3, False)])
def test_tiles_are_divided_where_some_programs_would_have_none(programs: int, is_divided: bool) -> None:
    made = looped(gated, rival=1, programs=programs)
    with small_tiles():
        agrees(made, gated, randn(48, 128), randn(48, 128, seed=1), randn(48, 128, seed=2))
    assert bool(divided([*made.codegen.kernels.values()])) == is_divided
    assert not divided(loops_of(made))


def test_windows_are_divided_by_steps_of_the_depth() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.conv2d(x, w, padding=1))

    x, w = (randn(*shape).contiguous(memory_format=torch.channels_last) for shape in ((1, 96, 6, 6), (24, 96, 3, 3)))
    made = looped(function, rival=1, programs=4)
    with small_tiles(deep=64):
        agrees(made, function, x, w)
    (kernel,) = divided([*made.codegen.kernels.values()])
    assert dict(kernel.configs[0].constants)["RBLOCK"] == 32


@pytest.mark.parametrize("capability", [HOPPER, AMPERE], ids=str)
def test_they_compile_for_devices(capability: tuple[int, int]) -> None:
    made = compiled(linear, tuned=True, properties=DeviceProperties(capability, multiprocessors=7))
    made.function(randn(384, 1024), randn(384, 1024), randn(384))
    (kernel,) = divided([rival for kernel in made.codegen.kernels.values() for rival in kernel.rivals])
    assert [scratch.zeroed for scratch in kernel.scratch] == [False, True]
    aligned = attrs.evolve(kernel, divisible=frozenset(kernel.parameters))
    for config in kernel.configs[:2]:
        binary = compile_offline(aligned, config, 10 * capability[0])
        assert ("wgmma" in binary.asm["ptx"]) == (capability == HOPPER)
        assert capability == AMPERE or waits_before_it_touches_memory(binary)
