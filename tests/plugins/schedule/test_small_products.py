"""Small products on the CPU are loops: as exact as the library's calls, whatever the operands look like in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turret
from turret.hooks.hookspecs import hookimpl
from turret.ir import ProductCandidate, Schedule

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Watch:
    """Plugin: keeps the schedules that are made."""

    def __init__(self) -> None:
        self.schedules: list[Schedule] = []

    @hookimpl
    def turret_event(self, event: object) -> None:
        if isinstance(getattr(event, "product", None), Schedule):
            self.schedules.append(event.product)

    @property
    def forms(self) -> list[str]:
        return [choice.form for made in self.schedules for choice in made.choices]

    @property
    def calls(self) -> int:
        return sum(len(made.templates) for made in self.schedules)


def compiled(function: Callable, *plugins: Any) -> Callable:
    return turret.compile(function, options={"on_error": "raise", "cache": False}, plugins=[*plugins], dynamic=False)


# ---------------------------------------------------------------- against eager

LAYOUTS = ("plain", "transposed", "sliced", "expanded", "shifted")


@attrs.frozen
class Drawn:
    """A product: ``op``, its extents, and the layouts of its two operands."""

    op: str
    batch: int
    rows: int
    columns: int
    depth: int
    left: str
    right: str
    dtype: torch.dtype
    beta: float
    alpha: float
    trained: bool


def operand(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of a shape that lies in memory as a layout says."""
    *batch, rows, columns = shape
    match layout:
        case "transposed":
            return torch.randn(*batch, columns, rows, dtype=dtype).mT
        case "sliced":
            return torch.randn(*batch, rows, 2 * columns + 1, dtype=dtype)[..., 1::2]
        case "expanded":
            return torch.randn(*batch, 1, columns, dtype=dtype).expand(shape)
        case "shifted":
            return torch.randn(*batch, rows + 1, columns, dtype=dtype)[..., 1:, :]
    return torch.randn(shape, dtype=dtype)


def operands(drawn: Drawn) -> list[torch.Tensor]:
    batch = (drawn.batch,) if drawn.op in ("bmm", "baddbmm") else ()
    left = operand((*batch, drawn.rows, drawn.depth), drawn.left, drawn.dtype)
    right = operand((*batch, drawn.depth, drawn.columns), drawn.right, drawn.dtype)
    if drawn.op == "mv":
        right = right[:, 0] if drawn.columns else torch.randn(drawn.depth, dtype=drawn.dtype)
    made = [left, right]
    if drawn.op in ("addmm", "baddbmm", "linear"):
        made.append(torch.randn(drawn.columns, dtype=drawn.dtype))
    return [t.requires_grad_() for t in made] if drawn.trained else made


def program(drawn: Drawn) -> Callable[..., torch.Tensor]:
    """The product between pointwise operations, for something to be fused with."""
    factors = {"beta": drawn.beta, "alpha": drawn.alpha}

    def function(left: torch.Tensor, right: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        match drawn.op:
            case "addmm":
                found = torch.addmm(*bias, left, right, **factors)
            case "baddbmm":
                found = torch.baddbmm(*bias, left, right, **factors)
            case "linear":
                found = F.linear(left * 2, right.t(), *bias)
            case "mv":
                found = torch.mv(left, right)
            case "bmm":
                found = torch.bmm(left, right)
            case _:
                found = left @ right
        return torch.relu(found) + found

    return function


EXTENT = st.sampled_from((0, 1, 1, 2, 3, 4, 8, 13, 16, 17, 20))
DRAWN = st.builds(
    Drawn,
    op=st.sampled_from(("mm", "bmm", "mv", "addmm", "baddbmm", "linear")),
    batch=st.sampled_from((0, 1, 2, 3)),
    rows=EXTENT,
    columns=EXTENT,
    depth=st.one_of(EXTENT, st.sampled_from((33, 40, 300))),
    left=st.sampled_from(LAYOUTS),
    right=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(tuple(TOLERANCE)),
    beta=st.sampled_from((1, 0, 0.5)),
    alpha=st.sampled_from((1, 0, -2.0)),
    trained=st.booleans(),
)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DRAWN, st.integers(0, 1 << 30))
def test_products_of_drawn_sizes_and_layouts_are_as_exact_as_eagers(drawn: Drawn, seed: int) -> None:
    torch.manual_seed(seed)
    own = operands(drawn)
    exact = [t.detach().double().requires_grad_(drawn.trained) for t in own]
    function = program(drawn)
    want, found, truth = function(*own), compiled(function)(*own), function(*exact)
    assert (found.shape, found.stride(), found.dtype) == (want.shape, want.stride(), want.dtype)
    pairs = [(found, want, truth)]
    if drawn.trained:
        weights = torch.randn_like(want)
        gradients = [
            torch.autograd.grad(result, tensors, weights.to(result.dtype), allow_unused=True)
            for result, tensors in ((found, own), (want, own), (truth, exact))
        ]
        pairs += zip(*gradients, strict=True)
    for got, eager, true in pairs:
        assert (got is None) == (eager is None)
        if got is None or not got.numel():
            continue
        assert (got.shape, got.dtype) == (eager.shape, eager.dtype)
        scale = max(1.0, float(true.detach().abs().max()))
        error, eagers = (float((t.detach().double() - true.detach()).abs().max()) for t in (got, eager))
        assert error <= 2 * eagers + TOLERANCE[drawn.dtype] * scale, (drawn, error, eagers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_factor_of_0_hides_stays_hidden(dtype: torch.dtype) -> None:
    nan, x, w = (
        torch.full((3,), float("nan"), dtype=dtype),
        torch.ones(2, 3, dtype=dtype),
        torch.ones(3, 3, dtype=dtype),
    )

    def function(bias: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.addmm(bias, x, w, beta=0), torch.addmm(x, x, w * bias, alpha=0)]

    torch.testing.assert_close(compiled(function)(nan, x, w), function(nan, x, w), equal_nan=True)


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("extents", "form"),
    [((1, 2, 2), "loops"), ((8, 8, 8), "loops"), ((16, 16, 8), "loops"), ((64, 16, 64), "library")],
    ids=str,
)
def test_what_was_measured_chooses(extents: tuple[int, int, int], form: str) -> None:
    rows, columns, depth = extents
    watch = Watch()
    x, w = torch.randn(rows, depth), torch.randn(depth, columns)
    compiled(torch.mm, watch)(x, w)
    assert watch.forms == [form]
    assert watch.calls == (form == "library")


def test_large_products_those_of_halves_and_dynamic_ones_stay_calls_that_nobody_is_asked_about() -> None:
    watch = Watch()
    compiled(torch.mm, watch)(torch.randn(64, 64), torch.randn(64, 64))
    halves = [torch.randn(2, 3, dtype=torch.bfloat16), torch.randn(3, 3, dtype=torch.bfloat16)]
    rounded = compiled(lambda x, w: (x @ w).float() * 3, watch)(*halves)
    torch.testing.assert_close(rounded, (halves[0] @ halves[1]).float() * 3, rtol=0, atol=0)
    dynamic = turret.compile(torch.mm, options={"on_error": "raise", "cache": False}, plugins=[watch], dynamic=True)
    dynamic(torch.randn(3, 4), torch.randn(4, 5))
    assert watch.calls == 3 and not watch.forms


def test_a_layer_with_its_activation_is_one_kernel_and_its_gradients_make_no_call() -> None:
    watch = Watch()
    layer = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    x = torch.randn(3, 4, requires_grad=True)
    result = compiled(layer, watch)(x)
    assert len(watch.schedules[0].kernels) == 2
    result.square().sum().backward()
    found, x.grad = x.grad, None
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    assert not watch.calls and set(watch.forms) == {"loops"} and len(watch.forms) >= 5


def test_a_candidate_knows_what_is_computed_along_with_it() -> None:
    class Asked:
        def __init__(self) -> None:
            self.candidates: list[ProductCandidate] = []

        @hookimpl
        def turret_choice_cost(self, candidate: ProductCandidate) -> float:
            self.candidates.append(candidate)
            return float(candidate.form != "loops")

    asked = Asked()
    compiled(lambda x, w: torch.relu(torch.tanh(x @ w) * 2), asked)(torch.randn(3, 4), torch.randn(4, 5))
    loops, library = asked.candidates
    assert (loops.form, library.form) == ("loops", "library")
    assert loops.epilogue_bytes == library.epilogue_bytes == 2 * 3 * 5 * 4
    assert len(loops.schedule.kernels) == 1 and not loops.schedule.templates
    assert len(library.schedule.kernels) == len(library.schedule.templates) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 1, 4), (2, 1, 1), (4, 1, 3), (4, 2, 3), (4, 2, 1)])
def test_zero_has_the_sign_that_the_library_gives_it(extents, dtype):
    """Sums start from +0 where there is more than one term, and a vector's product of one term is a sum as well."""
    rows, depth, columns = extents
    a, b = torch.zeros(rows, depth, dtype=dtype), -torch.ones(depth, columns, dtype=dtype)

    def program(a, b):
        batched = torch.bmm(a.expand(2, -1, -1), b.expand(2, -1, -1))
        return a @ b, batched, torch.mv(a, b[:, 0]), torch.dot(a[0], b[:, 0]), F.linear(a, b.t()), F.avg_pool1d(-a, 1)

    compiled = turret.compile(program, dynamic=False, options={"on_error": "raise"})(a, b)
    for made, wanted in zip(compiled, program(a, b), strict=True):
        assert torch.equal(made.signbit(), wanted.signbit())
