"""Gradients of the negative log likelihood equal eager's, and need no tensor of zeros to write to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import turret
from turret.hooks.hookspecs import hookimpl
from turret.ir import Kernel, Schedule
from turret.testing import Inputs, assert_same

SHAPES = [((5,), ()), ((7, 5), (7,)), ((3, 5, 4, 2), (3, 4, 2)), ((3, 5, 4), (3, 4))]


@pytest.mark.thorough
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize(("shape", "target_shape"), SHAPES)
def test_gradients_are_eagers(
    shape: tuple[int, ...], target_shape: tuple[int, ...], ignore_index: int, weighted: bool, reduction: str
) -> None:
    def function(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        given = weight if weighted else None
        return F.cross_entropy(x, target, given, ignore_index=ignore_index, reduction=reduction)

    def make_inputs(call: int) -> Inputs:
        generator = torch.Generator().manual_seed(call)
        x = torch.randn(shape, generator=generator).requires_grad_()
        target = torch.randint(0, 5, target_shape, generator=generator)
        if target.dim():
            target.view(-1)[0] = ignore_index
        return Inputs((x, target, torch.rand(5, generator=generator) + 0.5), (x,))

    assert_same(function, turret.compile(function, options={"on_error": "raise"}), make_inputs)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_of_half_types_are_rounded_once(dtype: torch.dtype, weighted: bool) -> None:
    rows = 1 << 12

    def function(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = weight if weighted else None
        reductions = [F.nll_loss(x, target, given, reduction=r) for r in ("mean", "sum")]
        return *reductions, F.nll_loss(x.T[None, :, :, None], target[None, :, None], given)

    compiled = turret.compile(function, options={"on_error": "raise"})
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(rows, 5, generator=generator).to(dtype)
        target = torch.randint(0, 5, (rows,), generator=generator)
        target[: 7 + seed] = -100
        weight = (torch.rand(5, generator=generator) + 0.5).to(dtype)
        exact = function(x.double(), target, weight.double())
        for found, wanted in zip(compiled(x, target, weight), exact, strict=True):
            # Products with weights are rounded, too, each by itself.
            torch.testing.assert_close(found, wanted.to(dtype), rtol=4e-3 if weighted else 0.0, atol=0.0)


def test_an_infinite_gradient_reaches_the_targets_class_alone() -> None:
    def function(x: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, target) * scale

    def make_inputs(call: int) -> Inputs:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(call)).requires_grad_()
        return Inputs((x, torch.tensor([0, 2, 1, 1]), torch.tensor(torch.inf)), (x,))

    assert_same(function, turret.compile(function, options={"on_error": "raise"}), make_inputs)


class Scatters:
    """Plugin: how many kernels write to places that they compute."""

    def __init__(self) -> None:
        self.count = 0

    @hookimpl(tryfirst=True)
    def turret_codegen(self, schedule: Schedule) -> None:
        stores: list[Any] = [s for step in schedule.steps if isinstance(step, Kernel) for s in step.stores]
        self.count += sum(store.mode is not None for store in stores)


def test_the_gradient_of_cross_entropy_scatters_nothing() -> None:
    scatters = Scatters()
    compiled = turret.compile(F.cross_entropy, options={"on_error": "raise", "cache": False}, plugins=[scatters])
    x = torch.randn(6, 50, requires_grad=True)
    compiled(x, torch.randint(0, 50, (6,))).backward()
    assert scatters.count == 0
