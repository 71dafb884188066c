"""Tensors that are spread over processes are their local parts and collectives in one graph, and spread outside."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import turret
from tests.distributed_lab import in_processes
from turret.hooks.hookspecs import hookimpl

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
    zeros,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Watch:
    """What was reported of a compiled callable; ``collectives``: those in its plans, in their order."""

    def __init__(self) -> None:
        self.graphs = 0
        self.said: list[str] = []
        self.recompiles: list[str] = []
        self.collectives: list[str] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind in ("graph_break", "fallback"):
            self.said.append(event.message)
        if event.kind == "recompile":
            self.recompiles.append(event.message)
        if event.kind == "product":
            self.graphs += event.stage == "capture"
            if event.stage == "codegen":
                self.collectives += re.findall(r"_c10d_functional::(\w+)", str(event.product))


def compiled(target: Any, watch: Watch, **arguments: Any) -> Any:
    return turret.compile(target, options={"cache": False}, plugins=[watch], **arguments)


def spread(shape: tuple[int, ...], placement: Any, mesh: Any, requires_grad: bool = False) -> DTensor:
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return distribute_tensor(whole, mesh, [placement], src_data_rank=None).requires_grad_(requires_grad)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, DTensor):
        assert (found.placements, found.device_mesh) == (expected.placements, expected.device_mesh)
        assert (found.shape, found.stride(), found.requires_grad) == (
            expected.shape, expected.stride(), expected.requires_grad,
        )  # fmt: skip
        torch.testing.assert_close(found.to_local(), expected.to_local())
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
    elif isinstance(expected, (tuple, list)):
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    else:
        assert found == expected


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def same(program: Callable, make: Callable[[], list], **arguments: Any) -> Watch:
    """Compile, and compare two calls, what they change and their gradients with eager's: one graph, nothing said."""
    watch = Watch()
    call = compiled(program, watch, backend="aot_eager", **arguments)
    mine, theirs = make(), make()
    for _ in range(2):
        found, expected = call(*mine), program(*theirs)
        assert_same(found, expected)
        assert_same(mine, theirs)
        for one, other in zip(flat(found), flat(expected), strict=True):
            if other.requires_grad and not other.is_leaf:
                whole(one).square().sum().backward(retain_graph=True)
                whole(other).square().sum().backward(retain_graph=True)
        for one, other in zip(mine, theirs, strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(whole(one.grad), whole(other.grad))
    assert (watch.graphs, watch.said) == (1, []), (watch.graphs, watch.said)
    return watch


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in flat(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def programs(mesh: Any) -> dict[str, tuple[Callable, Callable[[], list]]]:
    """Programs, and functions that make their arguments anew."""
    norm = distribute_module(nn.LayerNorm(6), mesh)

    def rows(grad: bool = True) -> list:
        return [spread((4, 6), Shard(0), mesh, grad)]

    def looks(a):
        placement, of = a.placements[0], a.device_mesh
        if isinstance(a, DTensor) and placement.is_shard() and placement == Shard(0) and of.size() == 2:
            return a * placement.dim + a.shape[0], a.placements, a.is_leaf
        return a

    def changes(a, b):
        a.copy_(b).mul_(2)
        b.add_(a)
        return a.sum()

    def without_gradients(a):
        with torch.no_grad():
            b = a * 2
        return a.detach() + b, a * b

    return {
        "product": (lambda a, b: a @ b, lambda: [spread((4, 6), Shard(1), mesh, True), spread((6, 8), Shard(0), mesh, True)]),
        "gathers": (lambda a: a.redistribute(placements=[Replicate()]) * 2, rows),
        "turns": (lambda a: (a.redistribute(a.device_mesh, (Shard(1),)) + 1).to_local(), rows),
        "whole": (lambda a: a.full_tensor().sum(0), rows),
        "uneven": (lambda a: (a * 2).full_tensor(), lambda: [spread((5, 3), Shard(0), mesh, True)]),
        "pending": (
            lambda x: DTensor.from_local(x, mesh, (Partial(),)).redistribute(placements=(Shard(0),)).to_local() * 2,
            lambda: [torch.arange(8.0).reshape(4, 2).requires_grad_()],
        ),
        "looks": (looks, lambda: rows(grad=False)),
        "changes": (changes, lambda: [*rows(grad=False), spread((4, 6), Shard(0), mesh)]),
        "without_gradients": (without_gradients, rows),
        "hands_through": (lambda a: (a, a.detach(), [a.t()]), rows),
        "module": (lambda a: norm(a), rows),
        "makes": (lambda a: a + zeros(4, 6, device_mesh=mesh, placements=[Shard(0)]), rows),
        "in_flight": (lambda y: y * 2 + 1, lambda: [functional.all_reduce(torch.arange(4.0), "sum", dist.group.WORLD)]),
    }  # fmt: skip


STEPS: dict[str, Callable] = {
    "sin": torch.sin,
    "times": lambda v: v * 1.5 + 1,
    "gather": lambda v: v.redistribute(placements=[Replicate()]),
    "rows": lambda v: v.redistribute(placements=[Shard(0)]),
    "columns": lambda v: v.redistribute(placements=[Shard(1)]),
    "square": lambda v: v @ v.t() / 4,
    "less_mean": lambda v: v - v.mean(0),
    "softmax": lambda v: torch.softmax(v, 1),
    "local": lambda v: DTensor.from_local(v.to_local().exp(), v.device_mesh, v.placements),
}


def drawn(mesh: Any, seed: int) -> None:
    """A chain of steps, the same one on all processes, equals eager's."""
    dice = random.Random(seed)
    chain = [STEPS[dice.choice(sorted(STEPS))] for _ in range(4)]
    placement = dice.choice([Shard(0), Shard(1), Replicate()])

    def program(v):
        for step in chain:
            v = step(v)
        return v.redistribute(placements=[Replicate()])

    same(program, lambda: [spread((4, 4), placement, mesh, True)])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TENSOR = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
ENDS = {
    "table": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def model(mesh: Any, plan: dict) -> Model:
    torch.manual_seed(0)
    made = Model()
    if plan is SEQUENCE:
        parallelize_module(made, mesh, ENDS)
    for block in made.blocks:
        parallelize_module(block, mesh, plan)
    return made


def trains(mesh: Any, plan: dict, collectives: int) -> nn.Module:
    """A whole model is one graph, whose losses are eager's; on all processes the same collectives in the same order."""
    watch = Watch()
    eager, mine = model(mesh, plan), model(mesh, plan)
    call = compiled(mine, watch)
    losses: list[list[float]] = []
    for target in (eager, call):
        optimizer = torch.optim.AdamW((eager if target is eager else mine).parameters(), lr=0.01, foreach=False)
        losses.append([])
        for step in range(3):
            tokens = torch.randint(0, 12, (2, 6), generator=torch.Generator().manual_seed(step))
            loss = nn.functional.cross_entropy(target(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    torch.testing.assert_close(losses[0], losses[1])
    assert (watch.graphs, watch.said) == (1, []), (watch.graphs, watch.said)
    started = [name for name in watch.collectives if name != "wait_tensor"]
    assert len(started) == collectives and watch.collectives.count("wait_tensor") == collectives, watch.collectives
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, watch.collectives)
    assert all(other == watch.collectives for other in everyone)
    return call


def checkpoints(mesh: Any, trained: nn.Module, folder: str) -> None:
    """What a compiled model saves, another one loads."""
    from torch.distributed import checkpoint

    checkpoint.save({"model": trained.state_dict()}, checkpoint_id=folder)
    other = compiled(model(mesh, TENSOR), Watch(), backend="eager")
    tokens = torch.arange(12).reshape(2, 6)
    before = other(tokens)
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    other.load_state_dict(state["model"])
    torch.testing.assert_close(other(tokens), trained(tokens))
    assert not torch.equal(before, other(tokens))


def recompiles_for_other_placements(mesh: Any) -> None:
    watch = Watch()
    call = compiled(lambda v: v.sum(0), watch, backend="eager")
    for placement, graphs in ((Shard(0), 1), (Shard(1), 2), (Shard(0), 2)):
        value = spread((4, 6), placement, mesh)
        assert_same(call(value), value.sum(0))
        assert watch.graphs == graphs


def says_what_it_leaves_to_eager(mesh: Any) -> None:
    tokens = distribute_tensor(torch.tensor([1, 5, 7]), mesh, [Replicate()], src_data_rank=None)
    table = spread((8, 6), Shard(0), mesh)
    for program, argument, reason in (
        (lambda w: nn.functional.embedding(tokens, w), table, "_MaskPartial"),
        (lambda x: distribute_tensor(x, mesh, [Shard(0)]) * 2, torch.ones(4, 2), "src_data_rank=None"),
    ):
        watch = Watch()
        found, expected = compiled(program, watch, backend="eager")(argument), program(argument)
        assert type(found) is DTensor
        torch.testing.assert_close(found.full_tensor(), expected.full_tensor())
        assert watch.said and all(reason in said for said in watch.said), watch.said


def work(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for name, (program, make) in programs(mesh).items():
        try:
            same(program, make)
        except Exception as error:
            raise AssertionError(name) from error
    for seed in range(3):
        drawn(mesh, seed)
    recompiles_for_other_placements(mesh)
    says_what_it_leaves_to_eager(mesh)
    trained = trains(mesh, TENSOR, 4)
    trains(mesh, SEQUENCE, 17)
    checkpoints(mesh, trained, folder)


def test_programs_on_tensors_spread_over_two_processes_are_one_graph_and_equal_eager_s():
    with tempfile.TemporaryDirectory() as folder:
        in_processes(Work(folder))


class Work:
    """``work`` with its folder, as something that another process can be handed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, rank: int) -> None:
        work(rank, self.folder)
