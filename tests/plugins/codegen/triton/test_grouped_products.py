"""Products of rows in groups as generated kernels, interpreted, must show what eager shows in a wider type."""

from __future__ import annotations

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.codegen.triton.test_products import BF16, F16, Generated, compiled, randn
from tests.plugins.codegen.triton.triton_lab import compile_offline
from turret.ir import verify
from turret.ir.text import parse


def wide(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each group's rows times its own matrix, in float64; zeros behind the last group."""
    found = torch.zeros(x.shape[0], w.shape[2], dtype=torch.float64)
    begin = 0
    for number, end in enumerate(ends.tolist()):
        found[begin:end] = x[begin:end].double() @ w[number].double()
        begin = end
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    groups = draw(st.integers(1, 9))
    rows = draw(st.integers(2, 70))
    ends = sorted(draw(st.lists(st.integers(0, rows), min_size=groups, max_size=groups)))
    if draw(st.booleans()):
        ends[-1] = rows
    columns, depth = 8 * draw(st.integers(1, 6)), 8 * draw(st.integers(1, 6))
    return rows, columns, depth, ends, draw(st.booleans()), draw(st.sampled_from((BF16, F16))), draw(st.booleans())


@settings(max_examples=5, deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(cases())
def test_groups_of_any_size_are_eagers(case: tuple) -> None:
    rows, columns, depth, ends, transposed, dtype, again = case
    stored = randn(len(ends), *((columns, depth) if transposed else (depth, columns)), dtype=dtype)
    w = stored.mT if transposed else stored

    def function(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.silu(torch._grouped_mm(x, w, offs=ends)) * scale

    made = compiled(function, dynamic=None)
    for count in (rows, 2 * rows + 1) if again else (rows,):  # the second call is of any number of rows
        x, scale = randn(count, depth, dtype=dtype), randn(count, 1, dtype=dtype)
        at = torch.tensor([end * count // rows for end in ends], dtype=torch.int32)
        got, want = made.function(x, w, at, scale), F.silu(wide(x, w, at)) * scale.double()
        assert (got.double() - want).abs().max() <= (1e-2 if dtype == BF16 else 2e-3) * (want.abs().max() + 1e-6)
        assert [choice.form for choice in made.schedule.choices] == ["tiles"]
        assert len(made.schedule.kernels) == 1 and not made.schedule.templates
    assert made.uses_matrix_instructions


def experts(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A layer of experts as ``transformers`` writes it, one expert a row."""
    sorted_ids, order = torch.sort(ids)
    ends = torch.searchsorted(sorted_ids, torch.arange(up.shape[0]), right=True, out_int32=True)
    h = torch._grouped_mm(x[order], up, offs=ends)
    return torch._grouped_mm(F.gelu(h), down, offs=ends)[torch.argsort(order)]


def test_rows_that_are_gathered_are_read_where_they_lie() -> None:
    x, up, down = randn(40, 32), randn(5, 32, 48), randn(5, 48, 32)
    ids = torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(0))
    made = compiled(experts)
    got = made.function(x, up, down, ids)
    h = F.gelu(x.double()[:, None] @ up.double()[ids])
    want = (h @ down.double()[ids])[:, 0]
    assert (got.double() - want).norm() <= 1e-2 * want.norm()
    first = next(kernel for kernel in made.schedule.kernels if "_grouped_mm" in kernel.origins)
    assert "x" in {tensor for store in first.stores for root in store.roots for tensor in _read(root)}


def _read(expr: turret.ir.Expr) -> set[str]:
    return {node.tensor for node in turret.ir.walk(expr) if node.op == "load"}


def test_a_gate_and_what_it_lets_through_are_one_kernel() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        gate, up = torch._grouped_mm(x, w, offs=ends).chunk(2, -1)
        return F.silu(gate) * up

    x, w, ends = randn(40, 32), randn(3, 48, 32).mT, torch.tensor([7, 7, 33], dtype=torch.int32)
    made = compiled(function)
    gate, up = wide(x, w, ends).chunk(2, -1)
    want = F.silu(gate) * up
    assert (made.function(x, w, ends).double() - want).norm() <= 1e-2 * want.norm()
    assert len(made.schedule.kernels) == 1 and made.uses_matrix_instructions


def test_gradients_are_eagers() -> None:
    ends = torch.tensor([3, 3, 17, 24], dtype=torch.int32)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.silu(torch._grouped_mm(x, w, offs=ends)).float().square().sum()

    tensors = [randn(24, 16).requires_grad_(), randn(4, 16, 32).requires_grad_()]
    wider = [t.detach().double().requires_grad_() for t in tensors]
    made = compiled(function)
    made.function(*tensors).backward()
    owners = torch.bucketize(torch.arange(24), ends.long(), right=True)
    F.silu((wider[0][:, None] @ wider[1][owners])[:, 0]).square().sum().backward()
    for mine, theirs in zip(tensors, wider, strict=True):
        assert (mine.grad.double() - theirs.grad).norm() <= 1e-2 * theirs.grad.norm()
    assert any("tiles" in str(s.choices) for s in made.generated.schedules)


def test_what_is_not_finite_stays_in_its_group() -> None:
    x, w, ends = randn(30, 16), randn(3, 16, 16), torch.tensor([7, 20, 26], dtype=torch.int32)
    w[1, 3, 4], x[28, 0] = float("inf"), float("nan")
    got = compiled(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends)).function(x, w, ends)
    assert torch.equal(got.isfinite(), wide(x, w, ends).isfinite())
    assert (got[26:] == 0).all()


def test_ends_that_are_not_ascending_touch_no_memory_outside() -> None:
    """The interpreter checks every access."""
    made = compiled(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends))
    for ends in ([9, 3, 40, 2], [-5, 60, 3, 3], [0, 0, 0, 0]):
        made.function(randn(30, 16), randn(4, 16, 16), torch.tensor(ends, dtype=torch.int32))


def test_schedules_are_their_text() -> None:
    made = compiled(lambda x, w, ends: torch.relu(torch._grouped_mm(x, w, offs=ends)))
    made.function(randn(30, 16), randn(3, 16, 16), torch.tensor([7, 20, 30], dtype=torch.int32))
    text = str(made.schedule)
    assert "group_of(" in text
    again = parse(text)
    verify(again)
    assert str(again) == text


def test_other_code_generators_write_them_too() -> None:
    x, w, ends = randn(30, 16), randn(3, 16, 24), torch.tensor([7, 20, 26], dtype=torch.int32)
    generated = Generated(("tiles",))
    made = turret.compile(
        lambda x, w, ends: torch.relu(torch._grouped_mm(x, w, offs=ends)),
        options={"on_error": "raise", "cache": False},
        plugins=[generated],
    )
    got, want = made(x, w, ends), torch.relu(wide(x, w, ends))
    assert (got.double() - want).norm() <= 1e-2 * want.norm()
    assert not generated.schedules[-1].templates


@pytest.mark.parametrize("rows", [32, 4096])
def test_kernels_compile_for_a_device_with_matrix_instructions(rows: int) -> None:
    made = compiled(lambda x, w, ends: F.gelu(torch._grouped_mm(x, w, offs=ends)))
    ends = torch.tensor([8, rows // 2, rows], dtype=torch.int32)
    made.function(randn(rows, 16), randn(3, 16, 16), ends)
    (kernel,) = made.codegen.kernels.values()
    aligned = attrs.evolve(kernel, divisible=frozenset(kernel.parameters[: len(kernel.buffers)]))
    binary = compile_offline(aligned)
    assert "wgmma" in binary.asm["ptx"] or "mma.sync" in binary.asm["ptx"]
