"""Which values a kernel computes again, and what that does to their precision."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.hooks.hookspecs import hookimpl


class Schedules:
    """Keeps the schedules of compiled graphs."""

    def __init__(self) -> None:
        self.made: list = []

    @hookimpl
    def turret_event(self, event) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.made.append(event.product)


def residual(x, weights):
    """A residual stream with a matmul in each branch."""
    for weight in weights:
        x = x + torch.relu(torch.nn.functional.layer_norm(x, x.shape[-1:])) @ weight
    return x


def run(dtype, count, **options):
    torch.manual_seed(0)
    x, weights = torch.randn(32, 48, dtype=dtype), [torch.randn(48, 48, dtype=dtype) / 7 for _ in range(count)]
    watch = Schedules()
    with torch.no_grad():
        found = turret.compile(residual, options={"cache": False} | options, plugins=[watch])(x, weights)
        exact = residual(x.double(), [w.double() for w in weights])
        plain = residual(x, weights)
    (schedule,) = watch.made
    sums = [s.tensor for k in schedule.kernels for s in k.stores if s.tensor.startswith("add")]
    error, eager_error = ((r - exact).norm().item() for r in (found, plain))
    return sums, error, eager_error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_residual_stream_in_a_half_type_is_rounded_seldom(dtype):
    sums, error, eager_error = run(dtype, 9)
    assert len(sums) <= 3
    assert error < 0.8 * eager_error


def test_in_float32_each_sum_is_stored_once():
    sums, _, _ = run(torch.float32, 9)
    assert len(sums) == 9


def test_roundings_that_are_asked_for_are_made():
    sums, error, eager_error = run(torch.bfloat16, 9, emulate_precision_casts=True)
    assert len(sums) == 9
    assert error == pytest.approx(eager_error, rel=0.1)


def test_what_a_decomposition_rounds_at_its_end_may_stay_unrounded():
    def program(x):
        return torch.nn.functional.gelu(x.sin()) + x

    torch.manual_seed(0)
    x = torch.randn(64, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        found = turret.compile(program, options={"cache": False})(x)
    torch.testing.assert_close(found, program(x.double()).bfloat16(), rtol=0, atol=0)


def test_what_lies_behind_a_choice_stays_unrounded():
    def program(patches, bias, token, place):
        return torch.cat((token, -(patches + bias)), 0) + place

    torch.manual_seed(0)
    args = [torch.randn(*shape, dtype=torch.bfloat16) for shape in ((40, 64), (64,), (1, 64), (41, 64))]
    found = turret.compile(program, options={"cache": False})(*args)
    torch.testing.assert_close(found, program(*(a.double() for a in args)).bfloat16(), rtol=0, atol=0)


def test_what_lies_behind_a_choice_is_rounded_where_a_jump_depends_on_it():
    def program(x, y):
        joined = torch.cat((x * x, y), 0)
        return joined > 0, torch.floor(joined + 1), torch.where(joined == 0, 1.0, 2.0)

    x, y = torch.full((3, 4), 1e-5, dtype=torch.float16), torch.ones(2, 4, dtype=torch.float16)
    found = turret.compile(program, options={"cache": False})(x, y)
    torch.testing.assert_close(found, program(x, y), rtol=0, atol=0)


def test_what_a_decomposition_rounds_at_its_start_is_rounded():
    def program(x, y):
        return torch.xlogy(x, y.abs() + 0.5)

    x, y = torch.ones(3, 4, dtype=torch.bfloat16), torch.tensor(0.503)
    found = turret.compile(program, options={"cache": False})(x, y)
    torch.testing.assert_close(found, program(x, y), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_logits_are_not_stored_for_the_one_that_a_loss_picks(dynamic: bool) -> None:
    watch = Schedules()
    logits, target = torch.randn(64, 96), torch.randint(0, 96, (64,))
    function = turret.compile(
        torch.nn.functional.cross_entropy, dynamic=dynamic, options={"cache": False}, plugins=[watch]
    )
    with torch.no_grad():
        found = function(logits, target)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, target))
    (schedule,) = watch.made
    assert all(len(store.coords) < 2 or store.coords[1].is_constant for k in schedule.kernels for store in k.stores)


HALF = (torch.float16, torch.bfloat16)
AROUND = (
    lambda x, half: x.to(half).float(),
    lambda x, half: x - x.to(half).to(x.dtype),
    lambda x, half: (x * 2).to(half).double(),
    lambda x, half: x.to(half).float().sum(0),
    lambda x, half: x.to(torch.float16).to(torch.bfloat16).float(),
    lambda x, half: torch.where(x > 0, x.to(half), -x.to(half)).float() * x,
    lambda x, half: (x.to(half), x.to(half).float()),
    lambda x, half: x.to(half, copy=True).float().to(half).float() + 1,
)


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("program", AROUND)
def test_a_rounding_that_the_program_asks_for_is_made(program, half):
    """``x - x.half().float()`` is what the rounding loses, and what float16 does not hold becomes infinite."""
    x = torch.tensor([[1e6, 1.0009765, -3e5], [3.0001, -0.1, 1e-9]])
    found = turret.compile(lambda x: program(x, half), options={"on_error": "raise"})(x)
    torch.testing.assert_close(found, program(x, half), rtol=0, atol=0, equal_nan=True)
