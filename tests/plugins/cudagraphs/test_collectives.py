"""Collectives in recordings, where the option says that their backend can be recorded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist

from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.api import cudagraphs

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


class _Done(dist._Work):
    """Work that was queued on the device."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None) -> bool:
        return True

    def get_future(self):
        return self.future


class TwoAlike(dist.ProcessGroup):
    """Two processes of which the other holds what this one does: their sum is twice that, computed on the device."""

    calls = 0

    def getBackendName(self) -> str:
        return "two-alike"

    def setGroupName(self, name: str) -> None:
        self.given_name = name

    def getGroupName(self) -> str:
        return self.given_name

    def allreduce(self, tensors, options):
        self.calls += 1
        for tensor in tensors:
            tensor.mul_(2)
        return _Done(tensors)


@contextlib.contextmanager
def two_alike() -> Iterator[TwoAlike]:
    group = TwoAlike(0, 2)
    if not hasattr(dist.Backend, "TWO-ALIKE"):
        dist.Backend.register_backend("two-alike", lambda *_: made[0], devices=["cpu", "acme"])
    made[:] = [group]
    try:
        dist.init_process_group("two-alike", rank=0, world_size=2, store=dist.HashStore())
        yield group
    finally:
        if dist.is_initialized():  # also where only a part of it was made: no other test could make one
            dist.destroy_process_group()


made: list[TwoAlike] = []


@on_acme
@pytest.mark.parametrize("recorded", [False, True])
def test_a_collective_is_recorded_where_the_option_says_so(world: World, recorded: bool) -> None:
    gc.collect()  # the report is of what lives
    with two_alike() as group:

        def f(x, w):
            total = torch.mm(x, w)
            dist.all_reduce(total)
            return total.sin() + 1

        w = rand(4, 4)
        compiled = world.compile(f, cudagraphs=True, cudagraph_collectives=recorded)
        for _ in range(5):
            x = rand(3, 4)
            found, before = compiled(x, w), group.calls
            torch.testing.assert_close(found.cpu(), f(x, w).cpu())
            group.calls = before
        functions = cudagraphs.report().functions
        skipped = [f for f in functions if f.skipped]
        assert len(skipped) == (0 if recorded else 1)
        assert all("cudagraph_collectives" in f.skipped for f in skipped)
        if recorded:
            (told,) = functions
            assert told.replays == 4 and not told.plain_calls
            before = group.calls
            compiled(rand(3, 4), w)
            assert group.calls == before  # a replay runs none of its code
