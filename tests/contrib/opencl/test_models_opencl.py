"""BERT and ResNet-18 train with OpenCL kernels: losses, gradients and the optimiser's steps are eager's."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.benchmarks.models import build
from tests.contrib.opencl.opencl_lab import Kernels, compiled

STEPS = 2


def train(workload, module, steps: int = STEPS) -> tuple[list[float], list[torch.Tensor], list[torch.Tensor]]:
    """Losses, the gradients of the first step, and the parameters after all of them."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    losses, gradients = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = workload.loss(module(*workload.training_inputs))
        loss.backward()
        losses.append(loss.item())
        gradients = gradients or [p.grad.clone() for p in module.parameters() if p.grad is not None]
        optimizer.step()
    return losses, gradients, [p.detach() for p in module.parameters()]


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """How far tensors lie from others, in parts of the largest magnitude among these."""
    largest = max(w.abs().max().item() for w in wanted)
    return max((f - w).abs().max().item() for f, w in zip(found, wanted, strict=True)) / largest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-2", "resnet18"])
def test_a_model_trains_as_in_eager(name: str) -> None:
    workload = build(name)
    kernels = Kernels()
    eager = copy.deepcopy(workload.module)
    losses, gradients, parameters = train(workload, compiled(workload.module, kernels))
    wanted = train(workload, eager)
    assert losses == pytest.approx(wanted[0], rel=1e-4) and losses[1] < losses[0]
    assert len(gradients) == len(wanted[1]) and distance(gradients, wanted[1]) < 1e-4
    assert distance(parameters, wanted[2]) < 1e-4
    assert len(kernels.plans) == 2 and all("__kernel void turret" in plan.source for plan in kernels.plans)
    assert not kernels.eager, kernels.eager
