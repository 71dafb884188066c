"""Models inside the wrappers of ``torch.distributed``: their blocks are captured, results and gradients are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import turret
from tests.distributed_lab import in_processes
from tests.plugins.capture.capture_lab import Observed

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2))
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def ddp(model: Net) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp(model: Net) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def two_dimensions(model: Net) -> nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


WRAPPERS = {f.__name__: f for f in (ddp, fsdp, two_dimensions)}


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def trains(wrap: Any, rank: int) -> None:
    """A wrapped model, captured and not, for two steps of training; its blocks are whole graphs."""
    torch.manual_seed(0)
    mine, theirs = Net(), Net()
    theirs.load_state_dict(mine.state_dict())
    mine, theirs = wrap(mine), wrap(theirs)
    observed = Observed(mine.__call__)
    for step in range(2):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + rank))
        found, expected = observed(x), theirs(x)
        torch.testing.assert_close(whole(found), whole(expected))
        found.sum().backward()
        expected.sum().backward()
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(whole(one.grad), whole(other.grad))
    assert not observed.fallbacks
    products = [sum("linear" in str(n.target) for n in g.module.graph.nodes) for g in observed.graphs]
    assert sum(products) >= 3 and all(count != 1 or wrap is not ddp for count in products), products
    assert wrap is ddp or products.count(2) in (1, 2), products  # a block has two, and both blocks may share a graph


HAPPENED: list[str] = []


@torch.library.custom_op("turret_tests::first_layer_backward", mutates_args=())
def first_layer_backward(gradient: torch.Tensor) -> torch.Tensor:
    HAPPENED.append("backward of the first layer")
    return gradient.clone()


@torch.library.custom_op("turret_tests::first_layer", mutates_args=())
def first_layer(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


for _op in (first_layer_backward, first_layer):
    _op.register_fake(torch.empty_like)
first_layer.register_autograd(lambda ctx, gradient: first_layer_backward(gradient))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = first_layer(self.layers[0](x))
        for layer in self.layers[1:]:
            x = torch.relu_(self.norm(layer(x)))
        return x


def sent(state, bucket):
    """Sends the gradients of a bucket, and notes when; DDP wants no other annotations than its own."""
    HAPPENED.append("a bucket is sent")
    future = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / 2)


def overlaps(rank: int) -> None:
    """Compiled inside of DDP, the first bucket is sent before the backward ends; losses and statistics are eager's."""
    results = []
    for options in (None, {"gradient_buckets": True}, {"gradient_buckets": False}):
        torch.manual_seed(0)
        model = Deep()
        inner = model if options is None else turret.compile(model, options={"cache": False, **options})
        wrapped = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=2 * 32 * 32 * 4 / 2**20)
        wrapped.register_comm_hook(None, sent)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for step in range(3):
            HAPPENED.clear()
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(2 * step + rank))
            loss = wrapped(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        results.append((losses, [b.clone() for b in model.buffers()]))
        early = HAPPENED.index("backward of the first layer") > HAPPENED.index("a bucket is sent")
        assert early == (options != {"gradient_buckets": False}), (options, HAPPENED)
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])


def work(rank: int) -> None:
    for wrap in WRAPPERS.values():
        trains(wrap, rank)
    overlaps(rank)


def test_blocks_of_wrapped_models_are_whole_graphs_train_as_in_eager_and_send_gradients_during_the_backward():
    in_processes(work)
