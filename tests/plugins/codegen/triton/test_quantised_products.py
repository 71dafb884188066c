"""Products with weights of few bits as generated kernels, interpreted, against float64 on what they stand for."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.triton.test_products import BF16, F16, compiled, randn
from tests.plugins.codegen.triton.triton_lab import compile_offline
from turret.ir import Expr, loads

GROUP = 16
"""Weights of a column that share a scale."""


def before(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, q.to(x.dtype) * scale[:, :1])


def behind(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, q.to(x.dtype)) * scale[:, 0]


def grouped(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    columns, depth = q.shape
    parts = q.to(x.dtype).view(columns, depth // GROUP, GROUP) * scale[:, :, None]
    return F.linear(x, parts.view(columns, depth))


def nibbles(x: torch.Tensor, stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Two weights a byte."""
    both = torch.stack([stored & 15, stored >> 4], -1).view(stored.shape[0], -1)
    return F.linear(x, (both.to(x.dtype) - 8) * scale[:, :1])


def packed(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch._weight_int8pack_mm(x, q, scale[:, 0])


def gated(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    half = q.shape[0] // 2
    gate, up = before(x, q[:half], scale[:half]), before(x, q[half:], scale[half:])
    return F.silu(gate) * up


FORMS: dict[str, Callable] = {"before": before, "behind": behind, "grouped": grouped, "packed": packed, "gated": gated}


def wide(form: str, x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    x, q, scale = x.double(), q.double(), scale.double()
    if form == "packed":
        return behind(x, q, scale)
    return FORMS[form](x, q, scale)


@settings(max_examples=8, deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(
    rows=st.sampled_from((1, 2, 7, 16, 33, 64)),
    columns=st.integers(1, 12),
    depth=st.integers(1, 5),
    form=st.sampled_from(sorted(FORMS)),
    dtype=st.sampled_from((BF16, F16)),
)
def test_weights_of_a_byte_are_read_as_they_are_stored(
    rows: int, columns: int, depth: int, form: str, dtype: torch.dtype
) -> None:
    columns, depth = 4 * columns, GROUP * depth
    x, scale = randn(rows, depth, dtype=dtype), randn(columns, depth // GROUP, dtype=dtype).abs() * 0.01
    q = torch.randint(-128, 128, (columns, depth), dtype=torch.int8, generator=torch.Generator().manual_seed(rows))
    made = compiled(FORMS[form])
    got, want = made.function(x, q, scale), wide(form, x, q, scale)
    assert (got.double() - want).norm() <= (1e-2 if dtype == BF16 else 2e-3) * want.norm()
    (kernel,) = made.schedule.kernels
    assert "q" in {node for store in kernel.stores for node in _read(store.expr)}
    assert not made.schedule.templates
    assert made.uses_matrix_instructions == (rows > 1)


def _read(expr: Expr) -> set[str]:
    return {node.tensor for node in loads(expr)}


@pytest.mark.parametrize("rows", [1, 6])
def test_two_weights_a_byte_are_read_as_they_are_stored(rows: int) -> None:
    x, scale = randn(rows, 48), randn(24, 1).abs()
    stored = torch.randint(0, 256, (24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made = compiled(nibbles)
    got, want = made.function(x, stored, scale), nibbles(x.double(), stored, scale.double())
    assert (got.double() - want).norm() <= 1e-2 * want.norm()
    assert len(made.schedule.kernels) == 1 and made.uses_matrix_instructions == (rows > 1)


def test_weights_of_many_rows_are_dequantised_once() -> None:
    x, scale = randn(130, 32), randn(16, 1).abs()
    q = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    made = compiled(before)
    got, want = made.function(x, q, scale), wide("before", x, q, scale)
    assert (got.double() - want).norm() <= 1e-2 * want.norm()
    assert len(made.schedule.kernels) == 2


def test_weights_that_the_program_returns_are_in_memory_as_eagers() -> None:
    def function(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = q.to(x.dtype) * scale[:, :1]
        return F.linear(x, w), w

    x, q, scale = randn(4, 32), torch.randint(-128, 128, (16, 32), dtype=torch.int8), randn(16, 1).abs()
    _, mine = compiled(function).function(x, q, scale)
    assert torch.equal(mine, function(x, q, scale)[1])


def test_picked_weights_are_read_where_they_lie() -> None:
    """Experts of a decoding step as ``transformers`` writes them: a matrix for each row."""

    def function(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return F.silu(torch.bmm(w[ids], x.unsqueeze(-1)).squeeze(-1))

    x, w, ids = randn(4, 40), randn(6, 24, 40), torch.tensor([5, 0, 0, 3])
    made = compiled(function)
    got, want = made.function(x, w, ids), F.silu((w.double()[ids] @ x.double().unsqueeze(-1)).squeeze(-1))
    assert (got.double() - want).norm() <= 1e-2 * want.norm()
    assert len(made.schedule.kernels) == 1 and [choice.form for choice in made.schedule.choices] == ["rows"]
    with pytest.raises(IndexError):
        made.function(x, w, torch.tensor([5, 0, 6, 3]))


@pytest.mark.parametrize("form", ["before", "grouped"])
def test_kernels_compile_for_a_device_with_matrix_instructions(form: str) -> None:
    made = compiled(FORMS[form])
    made.function(randn(4, 64), torch.ones(128, 64, dtype=torch.int8), randn(128, 4))
    (kernel,) = made.codegen.kernels.values()
    aligned = attrs.evolve(kernel, divisible=frozenset(kernel.parameters[: len(kernel.buffers)]))
    binary = compile_offline(aligned)
    assert "mma.sync" in binary.asm["ptx"] or "wgmma" in binary.asm["ptx"]
