"""Kernels whose launch takes longer than they do are gathered in one, whatever they compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.plugins.schedule.fusion import fuse
from turret.testing import check, program_of_seed

OPTIONS = {"cache": False, "on_error": "raise"}


@pytest.fixture(autouse=True)
def launches_take_time() -> Iterator[None]:
    """As on a GPU."""
    with mock.patch.object(fuse, "_launch_bytes", lambda group: 4 << 20):
        yield


@attrs.define(eq=False)
class Watching:
    """A plugin that counts the kernels of a compilation."""

    kernels: list[int] = attrs.field(factory=list)

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.kernels.append(len(event.product.kernels))


def test_counters_and_small_weights_are_updated_in_one_kernel_a_shape() -> None:
    def step(counters: list[torch.Tensor], weights: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        for counter in counters:
            counter.add_(1)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient * 0.1)

    watching = Watching()
    compiled = turret.compile(step, plugins=[watching], options=OPTIONS)
    made = [[torch.tensor(n) for n in range(9)], *([torch.randn(4, 8) for _ in range(9)] for _ in range(2))]
    theirs, ours = ([[t.clone() for t in tensors] for tensors in made] for _ in range(2))
    with torch.no_grad():
        step(*theirs)
        compiled(*ours)
    torch.testing.assert_close(ours, theirs)
    assert watching.kernels == [2]


def test_what_depends_on_a_kernel_between_stays_apart() -> None:
    def chain(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for _ in range(4):
            x = (x * 2).sum().reshape(1) + x
            found.append(x)
        return found

    compiled = turret.compile(chain, options=OPTIONS)
    torch.testing.assert_close(compiled(torch.ones(5)), chain(torch.ones(5)))


def test_norms_of_many_gradients_take_a_kernel_a_shape() -> None:
    def norm(gradients: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.get_total_norm(gradients)

    watching = Watching()
    compiled = turret.compile(norm, plugins=[watching], options=OPTIONS)
    gradients = [torch.randn(shape) for shape in ((4, 8), (5,)) for _ in range(9)]
    torch.testing.assert_close(compiled(gradients), norm(gradients))
    (kernels,) = watching.kernels
    assert kernels <= 4  # two shapes, the row of their norms, and its own


def test_large_tensors_have_kernels_of_their_own() -> None:
    watching = Watching()

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), y.cos()

    compiled = turret.compile(program, plugins=[watching], options=OPTIONS)
    compiled(torch.ones(1 << 20), torch.ones(1 << 20))
    assert watching.kernels == [2]


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_random_programs_do_what_eager_does(seed: int) -> None:
    check(program_of_seed(seed), lambda function: turret.compile(function, options=OPTIONS))
