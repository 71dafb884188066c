"""Matrix products as generated kernels, interpreted, must show what eager shows in a wider type."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.codegen.triton.triton_lab import compile_offline
from turret.hooks.hookspecs import hookimpl
from turret.ir import ProductCandidate, Schedule
from turret.plugins.codegen.triton import DeviceProperties

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class Generated:
    """Plugin: no product is a plain call where it can be in one of some forms.  ``schedules`` are those made."""

    def __init__(self, forms: tuple[str, ...]) -> None:
        self.forms, self.schedules = forms, []

    @hookimpl
    def turret_choice_cost(self, candidate: ProductCandidate) -> float | None:
        return float(candidate.form == "library") if candidate.form in (*self.forms, "library") else None

    @hookimpl
    def turret_event(self, event: object) -> None:
        if isinstance(getattr(event, "product", None), Schedule):
            self.schedules.append(event.product)


@attrs.frozen
class Compiled:
    """A function with its products as kernels, and what was made of it."""

    function: Callable
    generated: Generated
    codegen: InterpretedCodegen

    @property
    def schedule(self) -> Schedule:
        return self.generated.schedules[-1]

    @property
    def uses_matrix_instructions(self) -> bool:
        return any("tl.dot(" in kernel.source for kernel in self.codegen.kernels.values())


def compiled(
    function: Callable, dynamic: bool | None = False, forms: tuple[str, ...] = ("rows", "tiles"), **options: object
) -> Compiled:
    generated, codegen = Generated(forms), InterpretedCodegen(**options)
    made = turret.compile(
        function, options={"on_error": "raise", "cache": False}, plugins=[codegen, generated], dynamic=dynamic
    )
    return Compiled(made, generated, codegen)


def randn(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def agrees(made: Compiled, function: Callable, *tensors: torch.Tensor) -> None:
    """The compiled function is as near to float64's result as rounding to its type allows."""
    got = made.function(*tensors)
    want = function(*(t.double() for t in tensors))
    assert got.shape == want.shape
    tolerance = {BF16: 1e-2, F16: 2e-3, F32: 1e-5}[tensors[0].dtype]
    scale = want.abs().max().item() + 1e-6
    assert (got.double() - want).abs().max().item() <= tolerance * scale


EPILOGUES: dict[str, Callable] = {
    "nothing": lambda y, b, r: y,
    "bias": lambda y, b, r: y + b,
    "activation": lambda y, b, r: F.gelu(y + b),
    "residual": lambda y, b, r: torch.relu(y) * 0.5 + r,
    "transposed": lambda y, b, r: (y + b).mT.contiguous(),
    "two results": lambda y, b, r: torch.cat([y * 2, r], -1),
}


def product(
    sides: tuple[int, int, int, int], epilogue: str, transposed: tuple[bool, bool], dtype: torch.dtype
) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A product with an epilogue, and operands of (batch, rows, columns, depth); a batch of 0 is none."""
    batch, rows, columns, depth = sides
    lead = (batch,) if batch else ()

    def stored(m: int, n: int, transposed: bool, seed: int) -> torch.Tensor:
        found = randn(*lead, *((n, m) if transposed else (m, n)), dtype=dtype, seed=seed)
        return found.mT if transposed else found

    def function(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return EPILOGUES[epilogue](a @ b, bias, residual)

    a, b = stored(rows, depth, transposed[0], 1), stored(depth, columns, transposed[1], 2)
    bias, residual = randn(columns, dtype=dtype), randn(*lead, rows, columns, dtype=dtype, seed=3)
    return function, (a, b, bias, residual)


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    sizes = st.integers(1, 40)
    rows, columns, depth = draw(sizes), draw(sizes), draw(st.sampled_from((1, 3, 16, 33, 40)))
    return (
        draw(st.sampled_from((0, 0, 2))),
        rows,
        columns,
        depth,
        draw(st.sampled_from(sorted(EPILOGUES))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from((BF16, BF16, F16))),
        draw(st.booleans()),
    )


@settings(max_examples=8, deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(cases())
def test_products_of_any_shape_and_layout_are_eagers(case: tuple) -> None:
    batch, rows, columns, depth, epilogue, left_transposed, right_transposed, dtype, dynamic = case
    sides = (batch, rows, columns, depth)
    function, operands = product(sides, epilogue, (left_transposed, right_transposed), dtype)
    made = compiled(function, dynamic)
    agrees(made, function, *operands)
    assert not made.schedule.templates or 1 in (rows, columns)  # a matrix times a vector may stay a call


def test_an_epilogue_is_part_of_the_products_kernel_and_its_result_in_no_memory() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.linear(x, w, b)) + r

    made = compiled(function)
    agrees(made, function, randn(33, 48), randn(24, 48), randn(24), randn(33, 24))
    assert made.uses_matrix_instructions
    (kernel,) = made.schedule.kernels
    (store,) = kernel.stores
    assert [store.tensor] == [o.name for o in made.schedule.program.outputs]
    assert any(d.reason == "epilogue" for d in made.schedule.decisions if d.made) or len(kernel.origins) > 1
    assert [choice.form for choice in made.schedule.choices] == ["tiles"]


def test_a_gated_pair_of_products_is_one_kernel() -> None:
    def function(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate.t()) * (x @ up.t())

    for rows in (1, 20):
        made = compiled(function)
        agrees(made, function, randn(rows, 64), randn(24, 64, seed=1), randn(24, 64, seed=2))
        assert len(made.schedule.kernels) == 1


@settings(max_examples=6, deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(
    rows=st.sampled_from((1, 2, 5, 40)),
    columns=st.integers(1, 20),
    depth=st.integers(2, 40),
    turned=st.booleans(),
    dynamic=st.booleans(),
)
def test_columns_that_are_read_in_slices_are_products_of_one_kernel(
    rows: int, columns: int, depth: int, turned: bool, dynamic: bool
) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, second = (x @ w.t()).chunk(2, -1)
        return F.silu(second) * first + 1 if turned else F.silu(first) * second

    made = compiled(function, dynamic)
    agrees(made, function, randn(rows, depth), randn(2 * columns, depth))
    if not dynamic and rows > 1 and columns > 1:
        assert len(made.schedule.kernels) == 1 and made.uses_matrix_instructions


SLICES: dict[str, Callable] = {
    "three": lambda y: y[:, :16] * y[:, 16:32] + y[:, 32:],
    "overlapping": lambda y: y[:, :24] * y[:, 8:32],
    "half of it": lambda y: y[:, :16] * y[:, 16:32],
    "turned": lambda y: y[:24, :24] * y[:24, 24:].t(),
    "and whole": lambda y: torch.cat([y[:, :24] * y[:, 24:], y], -1),
}


@pytest.mark.parametrize("name", sorted(SLICES))
def test_other_slices_are_read_from_memory(name: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return SLICES[name](x @ w.t())

    made = compiled(function)
    agrees(made, function, randn(24, 40), randn(48, 40))
    assert len(made.schedule.kernels) > 1


def test_a_few_tiles_of_a_deep_product_are_divided_over_programs() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w.t()) + r

    made = compiled(function, properties=DeviceProperties(multiprocessors=16))
    agrees(made, function, randn(4, 1024), randn(40, 1024), randn(4, 40))
    assert len(made.codegen.kernels) == 2
    assert made.uses_matrix_instructions


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_kernels_of_symbolic_sizes_serve_other_sizes(rows: int) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x @ w)

    made = compiled(function, dynamic=True)
    agrees(made, function, randn(7, 24), randn(24, 19))
    assert not made.schedule.templates
    agrees(made, function, randn(rows, 24), randn(24, 19))


def test_addmm_scales_as_eager_does() -> None:
    for beta, alpha, bias in ((0.5, 2.0, (19,)), (0.0, 1.0, (1, 19)), (1.0, -1.0, (6, 1)), (2.0, 1.0, (6, 19))):

        def function(
            b: torch.Tensor, x: torch.Tensor, w: torch.Tensor, beta: float = beta, alpha: float = alpha
        ) -> torch.Tensor:
            return torch.addmm(b, x, w, beta=beta, alpha=alpha)

        agrees(compiled(function), function, randn(*bias), randn(6, 24), randn(24, 19))


def test_what_beta_zero_leaves_out_is_not_looked_at() -> None:
    bias = torch.full((19,), float("nan"), dtype=BF16)
    made = compiled(lambda b, x, w: torch.addmm(b, x, w, beta=0))
    assert made.function(bias, randn(6, 24), randn(24, 19)).isfinite().all()


def test_float32_products_with_a_vector_are_rows_and_others_stay_calls() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w.t())

    agrees(compiled(function), function, randn(1, 70, dtype=F32), randn(24, 70, dtype=F32))
    made = compiled(function)
    made.function(randn(3, 70, dtype=F32), randn(24, 70, dtype=F32))
    assert [step.kind for step in made.schedule.templates] == ["matmul"]
    assert all(choice.form == "library" for choice in made.schedule.choices)


def test_gradients_of_products_are_eagers() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b), approximate="tanh").float().square().sum()

    tensors = [randn(20, 32).requires_grad_(), randn(24, 32).requires_grad_(), randn(24).requires_grad_()]
    wide = [t.detach().double().requires_grad_() for t in tensors]
    compiled(function).function(*tensors).backward()
    function(*wide).backward()
    for mine, theirs in zip(tensors, wide, strict=True):
        assert (mine.grad.double() - theirs.grad).norm() <= 1e-2 * theirs.grad.norm()


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    x, w = randn(20, 40), randn(24, 40)
    x[3, 5], x[4, 0] = float("nan"), float("inf")
    got = compiled(lambda x, w: x @ w.t()).function(x, w)
    want = x.float() @ w.float().t()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())


@pytest.mark.parametrize("rows", [4, 80])
def test_kernels_compile_for_a_device_with_matrix_instructions(rows: int) -> None:
    made = compiled(lambda x, w, b: F.gelu(F.linear(x, w, b)))
    made.function(randn(rows, 64), randn(128, 64), randn(128))
    (kernel,) = made.codegen.kernels.values()
    aligned = attrs.evolve(kernel, divisible=frozenset(kernel.parameters[: len(kernel.buffers)]))
    binary = compile_offline(aligned)
    assert len(binary.asm["cubin"]) > 0
    assert "wgmma" in binary.asm["ptx"] or "mma.sync" in binary.asm["ptx"]


@settings(max_examples=5, deadline=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(2, 20),
    columns=st.integers(2, 20),
    depth=st.integers(2, 20),
    turned=st.tuples(st.booleans(), st.booleans()),
)
def test_padded_products_are_eagers(rows: int, columns: int, depth: int, turned: tuple[bool, bool]) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        a, b = a.mT if turned[0] else a, b.mT if turned[1] else b
        return torch.relu(torch.addmm(bias, a, b, beta=2)) + 1

    a = randn(*((depth, rows) if turned[0] else (rows, depth)))
    b = randn(*((columns, depth) if turned[1] else (depth, columns)), seed=1)
    a[0, 0] = 3.0
    agrees(compiled(function, forms=("padded",)), function, a, b, randn(columns))


def test_an_operand_that_two_products_want_is_padded_once() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g = g * 2
        return g @ w, g.t() @ x

    made = compiled(function, forms=("padded",))
    x, w, g = randn(16, 24), randn(41, 24, seed=1), randn(16, 41, seed=2)
    for mine, theirs in zip(made.function(x, w, g), function(x.double(), w.double(), g.double()), strict=True):
        assert (mine.double() - theirs).norm() <= 1e-2 * theirs.norm()
    assert [choice.form for choice in made.schedule.choices] == ["padded", "padded"]
    made_by_kernels = [store.tensor for kernel in made.schedule.kernels for store in kernel.stores]
    assert sum("padded" in name for name in made_by_kernels) == 2  # g and w, and neither of g and x again
