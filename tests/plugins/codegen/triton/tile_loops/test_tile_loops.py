"""Products as loops over tiles must show what eager shows in a wider type, however operands are moved."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from unittest import mock

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.triton.test_grouped_products import wide as wide_groups
from tests.plugins.codegen.triton.test_products import BF16, EPILOGUES, F16, Compiled, agrees, compiled, product, randn
from tests.plugins.codegen.triton.triton_lab import compile_offline, waits_before_it_touches_memory
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel
from turret.plugins.codegen.triton.tile_loops import tiling

HOPPER, AMPERE = (9, 0), (8, 0)


@contextlib.contextmanager
def small_tiles(parts: int = 1, deep: int = 16) -> Iterator[None]:
    """Tiles of a few rows and columns, of which small products have many; in parts where all is described, as ever."""
    described, plain = (((16, 16, count, deep, 4, 3, True),) for count in (parts, 1))
    with mock.patch.object(tiling, "_DESCRIBED", described), mock.patch.object(tiling, "_PLAIN", plain):
        yield


def looped(function: Callable, capability: tuple[int, int] = HOPPER) -> Compiled:
    """A function whose products are loops over tiles, of three programs."""
    return compiled(function, rival=0, properties=DeviceProperties(capability, multiprocessors=3))


def loops_of(made: Compiled) -> list[TritonKernel]:
    return [kernel for kernel in made.codegen.kernels.values() if "for turn in" in kernel.source]


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    even = draw(st.booleans())
    sizes = st.integers(3, 9).map(lambda n: 8 * n) if even else st.integers(17, 60)
    depth = draw(st.sampled_from((8, 16, 40, 48) if even else (5, 16, 33)))
    return (
        draw(st.sampled_from((0, 0, 2))),
        draw(sizes),
        draw(sizes),
        depth,
        draw(st.sampled_from(sorted(EPILOGUES))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from((BF16, F16))),
        draw(st.sampled_from((1, 2))),
        draw(st.sampled_from((HOPPER, HOPPER, AMPERE))),
    )


SETTINGS = settings(deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))


@settings(SETTINGS, max_examples=12)
@given(cases())
def test_products_of_any_shape_and_layout_are_eagers(case: tuple) -> None:
    batch, rows, columns, depth, epilogue, left_turned, right_turned, dtype, parts, capability = case
    function, operands = product((batch, rows, columns, depth), epilogue, (left_turned, right_turned), dtype)
    made = looped(function, capability)
    with small_tiles(1 if capability == AMPERE else parts):
        agrees(made, function, *operands)
    even = all(n % 8 == 0 for n in (rows, columns, depth))
    assert loops_of(made) or not (even or capability == AMPERE)
    if even and capability == HOPPER:
        assert all(kernel.source.count("make_tensor_descriptor") >= 2 for kernel in loops_of(made))
    if capability == AMPERE:
        assert not any("descriptor" in kernel.source for kernel in loops_of(made))


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ gate.t()) * (x @ up.t())


@pytest.mark.parametrize("parts", [1, 2])
def test_a_gated_pair_is_one_loop(parts: int) -> None:
    made = looped(gated)
    with small_tiles(parts):
        agrees(made, gated, randn(40, 64), randn(72, 64, seed=1), randn(72, 64, seed=2))
    assert len(loops_of(made)) == 1


def test_operands_that_are_cut_out_of_others_are_read_where_they_lie() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x[:, 16:56] @ w[8:48])

    made = looped(function)
    with small_tiles():
        agrees(made, function, randn(40, 64), randn(64, 48))
    (loop,) = loops_of(made)
    assert len(loop.described) == 3


def test_dequantised_weights_are_computed_beside_an_operand_that_is_described() -> None:
    def function(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, q.to(x.dtype) * scale)

    q = torch.randint(-100, 100, (40, 48), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    x, scale = randn(24, 48), randn(40, 1)
    made = looped(function)
    with small_tiles():
        got = made.function(x, q, scale)
    want = x.double() @ (q.double() * scale.double()).t()
    assert (got.double() - want).abs().max() <= 2e-2 * want.abs().max()
    (loop,) = loops_of(made)
    assert len(loop.described) == 2 and "for part in" not in loop.source


@settings(SETTINGS, max_examples=4)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=5), st.booleans())
def test_groups_of_rows_are_eagers(ends: list[int], turned: bool) -> None:
    stored = randn(len(ends), *((24, 40) if turned else (40, 24)))
    w, x = stored.mT if turned else stored, randn(50, 40)
    at = torch.tensor(sorted(ends), dtype=torch.int32)
    made = looped(lambda x, w, at: F.silu(torch._grouped_mm(x, w, offs=at)))
    with small_tiles():
        got, want = made.function(x, w, at), F.silu(wide_groups(x, w, at))
    assert (got.double() - want).abs().max() <= 1e-2 * (want.abs().max() + 1e-6)
    assert len(loops_of(made)) == 1


@pytest.mark.parametrize("shape", [(40, 40, 41), (1, 64, 64), (12, 64, 64)], ids=str)
def test_what_no_descriptor_can_show_or_is_thin_is_no_loop_on_hopper(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    made = looped(lambda x, w: torch.relu(x @ w.t()))
    with small_tiles():
        made.function(randn(rows, depth), randn(columns, depth))
    assert not loops_of(made)


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


@pytest.mark.parametrize("capability", [HOPPER, AMPERE], ids=str)
def test_loops_compile_for_devices(capability: tuple[int, int]) -> None:
    made = compiled(linear, tuned=True, properties=DeviceProperties(capability))
    made.function(randn(256, 128), randn(256, 128), randn(256))
    (kernel,) = made.codegen.kernels.values()
    (loop,) = kernel.rivals
    aligned = attrs.evolve(loop, divisible=frozenset(loop.parameters))
    for config in loop.configs if capability == HOPPER else loop.configs[:1]:
        binary = compile_offline(aligned, config, 10 * capability[0])
        ptx = binary.asm["ptx"]
        if capability == HOPPER:
            assert "wgmma" in ptx and waits_before_it_touches_memory(binary)
            assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared", ptx) and "cp.async.bulk.tensor.2d.global" in ptx
        else:
            assert "mma.sync" in ptx and "cp.async" in ptx
