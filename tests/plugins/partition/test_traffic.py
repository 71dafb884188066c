"""What the backward recomputes in a kernel of its own is saved; what it recomputes along the way is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import turret
from turret.graph import partitioning
from turret.hooks.devices import Costs
from turret.plugins.partition import cost
from turret.plugins.partition.traffic import LatePasses, is_written_late, materialized


@pytest.fixture(autouse=True)
def arithmetic_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose kernels wait for memory."""
    costs = Costs(cheap=0.01, divide=0.05, transcendental=0.1, random=1.0, flops_per_byte=100.0)
    monkeypatch.setattr(cost, "_costs", lambda node: costs)


def residual(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = F.relu(F.conv2d(x, w, padding=1) * 2 + x)
    return x.square().mean()


def perceptron(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = F.gelu(x @ w)
    return x.square().mean()


def saved_by(program: Callable[..., torch.Tensor], x: torch.Tensor, *weights: torch.Tensor) -> tuple[str, ...]:
    parts = turret.partition(turret.joint_graph(program, x, *(w.requires_grad_() for w in weights)))
    return tuple(value.name for value in parts.saved_tensors)


def test_activations_that_wait_for_a_convolution_s_gradient_are_saved() -> None:
    saved = saved_by(residual, torch.randn(2, 8, 16, 16), *(torch.randn(8, 8, 3, 3) for _ in range(4)))
    assert sum("relu" in name for name in saved) >= 3


def test_activations_whose_gradient_reads_the_same_are_recomputed() -> None:
    saved = saved_by(perceptron, torch.randn(64, 64), *(torch.randn(64, 64) for _ in range(4)))
    assert not any("mul" in name or "gelu" in name for name in saved) and sum("mm" in name for name in saved) == 4


def test_values_that_are_read_on_both_sides_of_a_product_are_in_memory() -> None:
    def stream(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        return (x + torch.tanh(x).mm(w)).exp().sum()

    joint = turret.joint_graph(stream, torch.randn(8, 8), torch.randn(8, 8, requires_grad=True))
    analysis = partitioning.analyze(joint)
    kept = {node.name for node in materialized(analysis)}
    assert {"sin", "tanh", "mm"} <= kept and "exp" not in kept
    passes = LatePasses(analysis)
    written = [node for node in analysis.candidates if is_written_late(node)]
    assert written and not any(passes.stands_alone(node) for node in written)


def test_a_long_chain_behind_a_product_is_no_deep_recursion() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x @ w)
        rest = x.mm(w)
        for _ in range(600):
            x = torch.sin(x) * 1.01
        return (x + rest).sum()

    parts = turret.partition(turret.joint_graph(chain, torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)))
    assert parts.saved_tensors
