"""Collectives are calls in the graph, and give what they give eagerly, on two processes."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import distributed as dist

import turret
from tests.distributed_lab import in_processes
from turret.hooks.hookspecs import hookimpl

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


def functional(x, group):
    from torch.distributed import _functional_collectives as functional

    total = functional.all_reduce(x * 2, "sum", group)
    most = functional.all_reduce(x, "MAX", group)
    rows = functional.all_gather_tensor(total + 1, 0, group) * 2
    columns = functional.all_gather_tensor(total + 1, 1, group)
    part = functional.reduce_scatter_tensor(x, "sum", 0, group)
    sent = functional.broadcast(x, 1, group)
    turned = functional.all_to_all_single(x, None, None, group)
    return [v + 0 for v in (total, most, rows, columns, part, sent, turned)]


def in_place(x, group):
    total = x * 3
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    rows = torch.empty(2 * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(rows, x + 1, group=group)
    part = torch.zeros(x.shape[0] // 2, x.shape[1])
    dist.reduce_scatter_tensor(part, x, group=group)
    first = x.clone()
    dist.broadcast(first, 0)
    turned = torch.empty_like(x)
    dist.all_to_all_single(turned, x, group=group)
    return [total, rows, part, first, turned, x]


def lists(x, group):
    rows = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(rows, x + 1, group=group)
    part = torch.empty(3)
    dist.reduce_scatter(part, [x[0, :3] * 2, x[1, :3].sin()], group=group)
    turned = [torch.empty(2, 6), torch.empty(2, 6)]
    dist.all_to_all(turned, [x[:2], x[2:]], group=group)
    return [*rows, part, *turned]


def facts(x, group):
    numbers = [dist.get_world_size(), dist.get_rank(), dist.get_world_size(group), dist.get_rank(group=group)]
    numbers += [group.size(), group.rank(), *dist.get_process_group_ranks(group), dist.get_global_rank(group, 0)]
    numbers += [dist.get_group_rank(group, dist.get_rank()), len(dist.get_backend(group)), len(group.group_name)]
    return [x * n for n in numbers]


def within_a_part(x, group):
    """Of a group that this process is alone in, where it has another rank than among all."""
    sent = x + dist.get_rank()
    dist.broadcast(sent, dist.get_rank(), group=own[0])
    return [sent, x * dist.get_world_size(own[0]), x + own[0].rank()]


own: list = []


class Watch:
    def __init__(self) -> None:
        self.breaks: list[str] = []
        self.graphs = 0

    @hookimpl
    def turret_event(self, event) -> None:
        if event.kind == "graph_break":
            self.breaks.append(event.message)
        self.graphs += event.kind == "product" and event.stage == "capture"


def compare(program, x) -> None:
    watch = Watch()
    compiled = turret.compile(
        program, options={"capture": "turret", "on_error": "raise", "cache": False}, plugins=[watch]
    )
    for value in (x, x + 1):
        for got, want in zip(compiled(value.clone(), dist.group.WORLD), program(value.clone(), dist.group.WORLD)):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
            assert type(got) is torch.Tensor
    assert watch.graphs == 1 and not watch.breaks, watch.breaks


def asks_again_for_another_group(x, rank: int) -> None:
    compiled = turret.compile(facts, options={"on_error": "raise", "cache": False})
    for group in (dist.group.WORLD, own[0], dist.group.WORLD):
        torch.testing.assert_close(compiled(x, group), facts(x, group))


class Plans:
    """The collectives of each plan, in their order."""

    def __init__(self) -> None:
        self.collectives: list[str] = []

    @hookimpl
    def turret_event(self, event) -> None:
        if event.kind == "product" and event.stage == "codegen":
            self.collectives += re.findall(r"_c10d_functional::(\w+)", str(event.product))


def uneven(x, rank):
    """Reads other results on each process, in another order than they are asked for, of sizes that differ."""
    from torch.distributed import _functional_collectives as functional

    own = torch.cat([x.reshape(-1)] * (rank + 1))
    first = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    second = functional.all_gather_tensor(x + 1, 0, dist.group.WORLD)
    again = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    third = functional.reduce_scatter_tensor(x.sin(), "sum", 0, dist.group.WORLD)
    return (own.exp().sum() + third.sum(), second * 2) if rank else (own.cos(), again.sum() + first)


def compare_order(x, rank: int) -> None:
    plans = Plans()
    compiled = turret.compile(uneven, options={"on_error": "raise", "cache": False}, plugins=[plans])
    for _ in range(2):
        torch.testing.assert_close(compiled(x, rank), uneven(x, rank))
    started = [name for name in plans.collectives if name != "wait_tensor"]
    assert started == ["all_reduce", "all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor"]
    assert plans.collectives.count("wait_tensor") == len(started)
    orders: list = [None, None]
    dist.all_gather_object(orders, started)
    assert orders[0] == orders[1]


def says_that_ranks_differ(x, rank: int) -> None:
    """One process compiles a sum, and the other one in its place a gathering, each beside the other's eager call."""
    from torch.distributed import _functional_collectives as functional

    programs = [
        lambda v: functional.all_reduce(v, "sum", dist.group.WORLD) + 0,
        lambda v: functional.all_gather_tensor(v, 0, dist.group.WORLD) + 0,
    ]
    said: list[str] = []
    for number, program in enumerate(programs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = turret.compile(program, options={"cache": False})(x) if rank == number else program(x)
        torch.testing.assert_close(found, program(x))
        said += [str(warning.message) for warning in caught if "compiled other collectives" in str(warning.message)]
        dist.barrier()
    assert len(said) == rank, said
    assert not said or "is all_gather_into_tensor in process 1 and all_reduce in process 0" in said[0], said


def process(rank: int) -> None:
    x = torch.arange(24.0).reshape(4, 6) * (rank + 1)
    compare(functional, x)
    compare(in_place, x)
    compare(lists, x)
    compare(facts, x)
    own[:] = [(dist.new_group([0]), dist.new_group([1]))[rank]]
    compare(within_a_part, x)
    asks_again_for_another_group(x, rank)
    compare_order(x, rank)
    says_that_ranks_differ(x, rank)


def test_they_are_calls_in_one_graph_and_equal_eager_s_on_two_processes():
    in_processes(process)


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("reason", ["async_op", "gradient"])
def test_what_a_graph_cannot_hold_breaks_it(alone, reason):
    def waits(x):
        y = x * 2
        handle = dist.all_reduce(y, async_op=True)
        handle.wait()
        return y + 1

    def writes(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    program = waits if reason == "async_op" else writes
    x = torch.ones(3, requires_grad=reason == "gradient")
    watch = Watch()
    options = {"capture": "turret", "on_error": "raise", "cache": False}
    got = turret.compile(program, options=options, plugins=[watch])(x)
    torch.testing.assert_close(got, program(x))
    assert reason in watch.breaks[0]
