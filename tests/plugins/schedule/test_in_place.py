"""Generated kernels that write over what they read give eager's results, fused or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import turret
from turret.hooks.hookspecs import hookimpl
from turret.ir import Schedule

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Schedules:
    """Keeps the schedules of a compile."""

    def __init__(self) -> None:
        self.made: list[Schedule] = []

    @hookimpl
    def turret_event(self, event) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.made.append(event.product)

    def reused(self) -> list[str]:
        return [n for s in self.made for n, b in s.memory.buffers.items() if b.reuses is not None]


def softmax_between(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1) @ w


def layer_norm_between(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x @ w, (64,)) @ w


def down_the_columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, 0) @ w


def pointwise_between(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w + x) @ w


def two_from_one(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    return (torch.sin(h) @ w) + (torch.cos(h) @ w)


def also_transposed(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    return (torch.sin(h) + h.t()) @ w


def norm_of_a_convolution(x: Tensor, w: Tensor) -> Tensor:
    h = F.conv2d(x.view(1, 1, 64, 64), w[:8, :9].reshape(8, 1, 3, 3), padding=1)
    h = torch.relu((h - h.mean((0, 2, 3), keepdim=True)) * torch.rsqrt(h.var((0, 2, 3), keepdim=True) + 1e-5))
    return F.conv2d(h, w[:8, :8].reshape(8, 8, 1, 1)).flatten(1) * 2


PROGRAMS = {
    f.__name__: f for f in (softmax_between, layer_norm_between, down_the_columns, pointwise_between, two_from_one)
}


def compare(function: Callable[..., Tensor], **options) -> Schedules:
    torch.manual_seed(0)
    x, w = torch.randn(64, 64), torch.randn(64, 64) / 8
    seen = Schedules()
    compiled = turret.compile(function, plugins=[seen], options={"on_error": "raise", "cache": False, **options})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x, w), function(x, w), rtol=1e-4, atol=1e-5)
    assert seen.made
    return seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_result_in_the_memory_of_its_argument_is_right(name: str) -> None:
    assert compare(PROGRAMS[name]).reused()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_programs_one_definition_a_kernel_are_right(name: str) -> None:
    compare(PROGRAMS[name], max_fusion_size=1)


def test_a_tensor_read_across_itself_keeps_its_memory() -> None:
    assert not compare(also_transposed).reused()


def test_normalising_the_result_of_a_library_call_in_its_memory_is_right() -> None:
    compare(norm_of_a_convolution)


def test_gradients_through_memory_taken_over_are_right() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 64, requires_grad=True), (torch.randn(64, 64) / 8).requires_grad_()
    for function in PROGRAMS.values():
        compiled = turret.compile(function, options={"on_error": "raise", "cache": False})
        want = torch.autograd.grad(function(x, w).square().sum(), (x, w))
        got = torch.autograd.grad(compiled(x, w).square().sum(), (x, w))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
