"""Batch norm becomes kernels, in training and in evaluation, and keeps its running statistics as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import turret
from turret.hooks.hookspecs import hookimpl
from turret.ir import Extern, Schedule
from turret.testing import Inputs, assert_same


class Externs:
    """Plugin: the ops that run as library calls."""

    def __init__(self) -> None:
        self.ops: set[str] = set()

    @hookimpl(tryfirst=True)
    def turret_codegen(self, schedule: Schedule) -> None:
        self.ops |= {str(step.op) for step in schedule.steps if isinstance(step, Extern)}


def check(make: Callable[[], nn.Module], x: torch.Tensor, training: bool) -> set[str]:
    """Compare a module with eager over two calls, its buffers too; the library calls that are left."""
    torch.manual_seed(0)
    eager, other = make(), make()
    other.load_state_dict(eager.state_dict())
    eager.train(training), other.train(training)
    externs = Externs()
    compiled = turret.compile(other, options={"on_error": "raise"}, plugins=[externs])
    for _ in range(2):
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        results = [module(given) for module, given in zip((eager, compiled), inputs, strict=True)]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        for result in results:
            (result * torch.arange(result.numel()).view(result.shape).cos()).sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-5)
    for (name, one), (_, two) in zip(eager.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5, msg=name)
    for one, two in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)
    return externs.ops


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"affine": False}, {"momentum": None}, {"momentum": 0.3, "eps": 1e-2}, {"track_running_stats": False}],
    ids=str,
)
def test_every_kind_of_batch_norm_is_kernels_alone(options: dict[str, Any], training: bool) -> None:
    x = torch.randn(6, 5, 3, 4, generator=torch.Generator().manual_seed(1))
    # A cumulative average reads the number of batches, as eager does.
    reads = {"aten._local_scalar_dense.default"} if training and options.get("momentum", 0.1) is None else set()
    assert check(lambda: nn.BatchNorm2d(5, **options), x, training) == reads


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("norm", "shape"), [(nn.BatchNorm1d, (7, 5)), (nn.BatchNorm1d, (3, 5, 9)), (nn.BatchNorm3d, (2, 5, 2, 3, 4))]
)
def test_batch_norm_of_every_rank(norm: type[nn.Module], shape: tuple[int, ...], training: bool) -> None:
    assert not check(lambda: norm(5), torch.randn(*shape, generator=torch.Generator().manual_seed(2)), training)


def test_batch_norm_runs_with_the_convolution_and_activation_around_it_in_one_kernel_each() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())

    ops = check(make, torch.randn(2, 3, 9, 9), False)
    assert {op for op in ops if "norm" in op} == set()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("stats", [torch.float32, None])
def test_dtypes_of_inputs_and_of_running_statistics(
    dtype: torch.dtype, stats: torch.dtype | None, training: bool
) -> None:
    if dtype == torch.float64 and stats is not None:
        pytest.skip("eager takes no float32 statistics for a float64 input")

    def function(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, mean, variance, training=training)

    def make_inputs(call: int) -> Inputs:
        x = torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(call)).to(dtype).requires_grad_()
        kept = stats or dtype
        return Inputs((x, torch.zeros(4, dtype=kept), torch.ones(4, dtype=kept)), (x,))

    assert_same(function, turret.compile(function, options={"on_error": "raise"}), make_inputs)


def test_batches_of_any_size_share_a_graph() -> None:
    module = nn.BatchNorm1d(4)
    compiled = turret.compile(module, dynamic=True, options={"on_error": "raise"})
    for rows in (3, 8, 17):
        x = torch.randn(rows, 4)
        module.eval()
        torch.testing.assert_close(compiled(x), module(x))
