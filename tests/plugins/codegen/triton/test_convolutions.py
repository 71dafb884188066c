"""Convolutions as generated kernels, interpreted, must show what eager shows in a wider type."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.triton.test_products import BF16, F16, agrees, compiled, randn
from tests.plugins.codegen.triton.tile_loops.test_tile_loops import SETTINGS, small_tiles
from tests.plugins.codegen.triton.triton_lab import compile_offline
from turret.plugins.codegen.triton import DeviceProperties


def channels_last(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    found = randn(*shape, dtype=dtype, seed=seed)
    if len(shape) == 3:
        return found.transpose(1, 2).contiguous().transpose(1, 2)
    return found.contiguous(memory_format=torch.channels_last)


EPILOGUES: dict[str, Callable] = {
    "nothing": lambda y, r: y,
    "activation": lambda y, r: F.silu(y),
    "residual": lambda y, r: torch.relu(y + r),
    "two results": lambda y, r: torch.cat([y, torch.relu(y)], 1),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    window = draw(st.sampled_from(((1, 1), (3, 3), (3, 3), (2, 3), (5, 1))))
    stride, padding, dilation = (draw(st.sampled_from(each)) for each in ((1, 1, 2), (0, 1, 2), (1, 1, 2)))
    return (
        draw(st.integers(1, 3)),
        draw(st.sampled_from((16, 20, 32, 64, 96))),
        draw(st.sampled_from((2, 17, 24, 40))),
        (draw(st.integers(9, 12)), draw(st.integers(9, 12))),
        window,
        (stride, padding, dilation),
        draw(st.booleans()),
        draw(st.sampled_from(sorted(EPILOGUES))),
        draw(st.sampled_from((BF16, F16))),
        draw(st.sampled_from((None, 0))),
    )


@settings(SETTINGS, max_examples=12)
@given(cases())
def test_convolutions_of_any_shape_are_eagers(case: tuple) -> None:
    samples, channels, outputs, image, window, places, biased, epilogue, dtype, rival = case

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *r: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, b if biased else None, *places)
        return EPILOGUES[epilogue](y, r[0] if r else y)

    x, w = channels_last(samples, channels, *image, dtype=dtype), channels_last(outputs, channels, *window, dtype=dtype)
    b = randn(outputs, dtype=dtype)
    residual = channels_last(*function(x, w, b).shape, dtype=dtype, seed=1)
    made = compiled(function, rival=rival, properties=DeviceProperties(multiprocessors=3))
    with small_tiles(deep=64):
        agrees(made, function, x, w, b, residual)
    assert [choice.form for choice in made.schedule.choices] == ["tiles"]
    assert made.uses_matrix_instructions and not made.schedule.templates


def test_convolutions_of_rows_are_eagers() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.conv1d(x, w, b, stride=2, padding=2, dilation=2))

    made = compiled(function)
    x, w = channels_last(2, 32, 30), channels_last(24, 32, 3)
    if F.conv1d(x, w).stride(1) == 1:
        agrees(made, function, x, w, randn(24))
        assert made.uses_matrix_instructions


def test_a_few_tiles_of_deep_windows_are_divided_over_programs() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.conv2d(x, w, padding=1))

    made = compiled(function, properties=DeviceProperties(multiprocessors=64))
    agrees(made, function, channels_last(1, 192, 5, 5), channels_last(32, 192, 3, 3))
    assert len(made.codegen.kernels) == 2 and made.uses_matrix_instructions


def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(torch.relu(F.conv2d(x, w, padding=1)), v, padding=1) + x)


def test_what_lies_between_two_convolutions_has_its_channels_side_by_side() -> None:
    made = compiled(block)
    agrees(made, block, channels_last(1, 32, 8, 8), channels_last(32, 32, 3, 3), channels_last(32, 32, 3, 3, seed=1))
    first, second = made.schedule.kernels
    (store,) = first.stores
    assert made.schedule.program.declarations()[store.tensor].stride[1] == 1
    assert len(second.stores) == 1


@pytest.mark.parametrize("case", ["groups", "rows first", "transposed", "float32", "few"])
def test_others_stay_calls(case: str) -> None:
    channels, outputs = (2, 8) if case == "few" else (16, 16)
    groups = 4 if case == "groups" else 1
    dtype = torch.float32 if case == "float32" else BF16
    x, w = randn(1, channels, 8, 8, dtype=dtype), randn(outputs, channels // groups, 2, 2, dtype=dtype)
    if case != "rows first":
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], case == "transposed", [0, 0], groups)

    made = compiled(function)
    made.function(x, w)
    assert [template.kind for template in made.schedule.templates] == ["convolution"]


@pytest.mark.parametrize(("channels", "capability"), [(64, (9, 0)), (24, (9, 0)), (64, (8, 0))])
def test_kernels_compile_and_load_blocks_ahead(channels: int, capability: tuple[int, int]) -> None:
    made = compiled(lambda x, w: torch.relu(F.conv2d(x, w, padding=1)), properties=DeviceProperties(capability))
    made.function(channels_last(2, channels, 12, 12), channels_last(64, channels, 3, 3))
    (kernel,) = made.codegen.kernels.values()
    aligned = attrs.evolve(kernel, divisible=frozenset(kernel.parameters))
    config = next(c for c in kernel.configs if dict(c.constants)["YBLOCK"] == 64)
    ptx = compile_offline(aligned, config, 10 * capability[0]).asm["ptx"]
    assert "wgmma" in ptx or (capability == (8, 0) and "mma.sync" in ptx)
    assert "cp.async.cg.shared.global" in ptx
    assert ("place" in kernel.source) == (channels == 64)
