"""Models inside the wrappers of ``torch.distributed``: their blocks are captured, results and gradients are eager's."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import nn

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


def tensor_parallel(model: Net) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


WRAPPERS = {f.__name__: f for f in (ddp, fsdp, tensor_parallel)}


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def work(rank: int, port: int) -> None:
    """One of two processes: each wrapped model, captured and not, for two steps of training."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        for name, wrap in WRAPPERS.items():
            torch.manual_seed(0)
            mine, theirs = Net(), Net()
            theirs.load_state_dict(mine.state_dict())
            mine, theirs = wrap(mine), wrap(theirs)
            observed = Observed(mine.__call__)
            for step in range(2):
                seed = step if name == "tensor_parallel" else 2 * step + rank
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
                found, expected = observed(x), theirs(x)
                torch.testing.assert_close(whole(found), whole(expected))
                found.sum().backward()
                expected.sum().backward()
                for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                    torch.testing.assert_close(whole(one.grad), whole(other.grad))
            assert observed.graphs, name
            calls = [n for g in observed.graphs for n in g.module.graph.nodes if "linear" in str(n.target)]
            assert calls or name == "tensor_parallel", name
        torch.distributed.barrier()  # the first process holds the store that the other one still talks to
    finally:
        torch.distributed.destroy_process_group()
    os._exit(0)  # threads of gloo's that are still there as Python ends abort the process, eagerly too (torch 2.13)


def test_blocks_of_wrapped_models_are_captured_and_train_as_in_eager():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port,), nprocs=2)
