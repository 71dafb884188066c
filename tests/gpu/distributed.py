"""Checks and times training and collectives over the GPUs of one machine, one process a GPU, by NCCL.

    python -m tests.gpu.distributed [--ways ddp,fsdp,tp,2d] [--systems eager,torch,turret,recorded] [--steps 20]

``2d`` shards blocks over pairs of processes in which each is tensor parallel; it takes four. Loss curves in float32
must be eager's; step times are of bfloat16. ``recorded`` is ``mode="reduce-overhead"`` with ``cudagraph_collectives``.
``--device cpu`` runs the same with gloo and small models, without recordings.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.gpu import tree_import  # noqa: F401  # isort: skip  (makes turret importable)
import attrs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, multiprocessing, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import turret

RECORDED = {"cudagraphs": True, "cudagraph_collectives": True}
SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "torch": torch.compile,
    "turret": lambda function: turret.compile(function, options={"on_error": "raise"}),
    "recorded": lambda function: turret.compile(function, options={"on_error": "raise", **RECORDED}),
}


@attrs.frozen
class Sizes:
    """Of a model of ``layers`` blocks, and of the batch that each process is given."""

    width: int
    layers: int
    batch: int
    length: int


SMALL, LARGE = Sizes(64, 2, 2, 16), Sizes(1024, 8, 8, 256)


class Block(nn.Module):
    """Attention and a gated layer, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 4)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        heads = (part.unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2) for part in self._parts(y))
        y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(y), self.k(y), self.v(y)


class Model(nn.Module):
    """Blocks behind one another."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(sizes.width) for _ in range(sizes.layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def ddp(model: Model, mesh: DeviceMesh, compiled: Callable) -> nn.Module:
    made: nn.Module = compiled(DistributedDataParallel(model))
    return made


def fsdp(model: Model, mesh: DeviceMesh, compiled: Callable) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
        block.forward = compiled(block.forward)
    return fully_shard(model, mesh=mesh)


_PLAN = {
    **{name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
    **{name: RowwiseParallel() for name in ("out", "down")},
}


def tp(model: Model, mesh: DeviceMesh, compiled: Callable) -> nn.Module:
    for block in model.blocks:
        assert isinstance(block, Block)
        parallelize_module(block, mesh, _PLAN)
    made: nn.Module = compiled(model)
    return made


def two_dimensions(model: Model, mesh: DeviceMesh, compiled: Callable) -> nn.Module:
    for block in model.blocks:
        parallelize_module(block, mesh["model"], _PLAN)
    return fsdp(model, mesh["data"], compiled)


WAYS = {"ddp": ddp, "fsdp": fsdp, "tp": tp, "2d": two_dimensions}


def mesh_of(way: str, kind: str) -> tuple[DeviceMesh, int]:
    """The processes as a way has them, and the number of the batch that this one is given."""
    count = dist.get_world_size()
    if way != "2d":
        return init_device_mesh(kind, (count,)), 0 if way == "tp" else dist.get_rank()
    mesh = init_device_mesh(kind, (count // 2, 2), mesh_dim_names=("data", "model"))
    return mesh, mesh.get_local_rank("data")


@attrs.frozen
class Run:
    """Losses of some steps, and the median milliseconds of the later ones."""

    losses: list[float]
    milliseconds: float


def trained(way: str, system: str, device: torch.device, sizes: Sizes, dtype: torch.dtype, steps: int) -> Run:
    """Train a model of this seed for some steps, on batches that differ as far as a way shares them out."""
    turret.reset()
    mesh, batch = mesh_of(way, device.type)
    torch.manual_seed(7)
    model = Model(sizes).to(device, dtype)
    torch.manual_seed(100 + batch)
    made = WAYS[way](model, mesh, SYSTEMS[system])
    foreach = False if way in ("tp", "2d") else None  # eager's takes no spread parameters beside others
    optimizer = torch.optim.SGD(made.parameters(), lr=0.05, foreach=foreach)
    losses, times = [], []
    for step in range(steps):
        x = torch.randn(sizes.batch, sizes.length, sizes.width).to(device, dtype)
        synchronize(device)
        start = time.perf_counter()
        loss = (made(x).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        synchronize(device)
        times.append((time.perf_counter() - start) * 1e3)
        losses.append(float(loss.detach()))
    return Run(losses, statistics.median(times[steps // 2 :]))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reductions(x: Tensor, w: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Collectives of three kinds between kernels and products."""
    total = (x @ w).sin()
    dist.all_reduce(total, group=group)
    gathered = total.new_empty((dist.get_world_size() * x.shape[0], x.shape[1]))
    dist.all_gather_into_tensor(gathered, (x + dist.get_rank()).cos(), group=group)
    part = torch.empty_like(x)
    dist.reduce_scatter_tensor(part, gathered * 2 + 1, group=group)
    return total + 1, gathered.exp(), part.softmax(-1)


def collectives(device: torch.device) -> Iterator[str]:
    """Recorded collectives give what eager ones give, call after call, and in turn with eager ones."""
    group = dist.group.WORLD
    assert group is not None
    recorded = {} if device.type == "cpu" else RECORDED
    function = functools.partial(reductions, group=group)
    compiled = turret.compile(function, options={"on_error": "raise", "cache": False, **recorded})
    w, kept = torch.randn(64, 64, device=device), []
    for call in range(12):
        x = torch.randn(32, 64, device=device) * (dist.get_rank() + 1)
        kept.append((compiled(x, w), function(x, w)))
        if call % 3 == 2:
            dist.barrier()
    for found, expected in kept:
        torch.testing.assert_close(found, expected)
    report = turret.cudagraphs.report()
    if recorded:
        assert report.replays >= 8, str(report)
    yield f"collectives: {report.recordings} recordings, {report.replays} replays, {report.bytes_copied} bytes copied"


def check(device: torch.device, ways: list[str], systems: list[str], steps: int) -> Iterator[str]:
    """What was seen, line by line; what is wrong begins with WRONG."""
    yield from attempted("collectives", lambda: collectives(device))
    for way in ways:
        yield from attempted(way, functools.partial(losses, way, device, systems, steps))
        if device.type == "cuda":
            yield from attempted(way, functools.partial(times, way, device, systems, steps))


def losses(way: str, device: torch.device, systems: list[str], steps: int) -> Iterator[str]:
    """How far loss curves of the small model are from eager's."""
    expected = trained(way, "eager", device, SMALL, torch.float32, steps).losses
    for system in systems:
        if system not in ("eager", "torch"):
            found = trained(way, system, device, SMALL, torch.float32, steps).losses
            worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(found, expected, strict=True))
            verdict, replays = "WRONG" if worst > 1e-4 else "right", turret.cudagraphs.report().replays
            yield f"{verdict} {way} {system}: losses differ by {worst:.1e}, {replays} replays"


def times(way: str, device: torch.device, systems: list[str], steps: int) -> Iterator[str]:
    """Step times of the larger model."""
    for system in systems:
        found = trained(way, system, device, LARGE, torch.bfloat16, steps)
        yield f"{way} {system}: {found.milliseconds:.2f} ms a step, last loss {found.losses[-1]:.4f}"


def attempted(name: str, run: Callable[[], Iterator[str]]) -> Iterator[str]:
    try:
        yield from run()
    except Exception:
        yield f"WRONG {name}: {traceback.format_exc()}"


def work(rank: int, count: int, asked: argparse.Namespace) -> None:
    """One process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(asked.port))
    device = torch.device(asked.device, rank) if asked.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=count, timeout=datetime.timedelta(seconds=90))
    wrong = 0
    for line in check(device, asked.ways.split(","), asked.systems.split(","), asked.steps):
        wrong += line.startswith("WRONG")
        if rank == 0 or line.startswith("WRONG"):
            print(f"[{rank}] {line}", flush=True)
    dist.barrier()
    os._exit(min(wrong, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--ways", default="ddp,fsdp,tp", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--systems", default="eager,torch,turret,recorded", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--port", type=int, default=29_517)
    asked = parser.parse_args()
    context = multiprocessing.spawn(work, (asked.processes, asked), asked.processes, join=False)
    for process in context.processes:
        process.join()
    codes = [process.exitcode for process in context.processes]
    print("exit codes", codes)
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main())
