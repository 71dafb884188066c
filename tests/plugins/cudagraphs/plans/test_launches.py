"""Plans that are launched over given memory, by stub segments that note what they are handed."""

from __future__ import annotations

import ctypes

import pytest
import torch

from turret.errors import CodegenError
from turret.hooks.devices import PlanLibrary, Segment
from turret.hooks.size_source import SizeSource
from turret.plan import Launch, Plan, Slot, SlotRef
from turret.plugins.cudagraphs.plans.launches import PlanLaunches
from turret.plugins.cudagraphs.recording.recorder import NotRecordable

NOT_ALIGNED, NOT_COMPILED = 1, 2


class Kernels(PlanLibrary):
    """Two kernels, of which one is compiled when an odd size asks for it; ``log`` has what happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_compiled = self.fails = False

    def segment(self, launch: Launch) -> Segment:
        def run(slots_at: int, sizes_at: int, stream: int) -> int:
            size = ctypes.c_int64.from_address(sizes_at).value
            if size == 13:
                return NOT_ALIGNED
            if size % 2 and launch.function == "second" and not self.is_compiled:
                return NOT_COMPILED
            self.log.append(f"{launch.function} of {size}")
            return 0

        return Segment(run, lambda *handed: pytest.fail("a recording recovers from nothing else"), (), self.compile)

    def compile(self, status: int) -> bool:
        if status != NOT_COMPILED:
            return False
        if self.fails:
            raise CodegenError("kernel second did not compile")
        self.log.append("compiled")
        self.is_compiled = True
        return True


def launches(kernels: Kernels) -> PlanLaunches:
    slots = (Slot("x", ("s0",), (1,), "float32", "cpu", "input", 0),)
    steps = (Launch("first", (0,)), Launch("second", (0,)))
    sources = {"s0": SizeSource(0, 0)}
    plan = Plan("p", "cpu", slots, (0,), steps, (SlotRef(0),), ("s0",), sources)
    return PlanLaunches(plan, kernels, ("s0",), lambda: None)


def test_a_kernel_that_is_not_compiled_is_before_the_launch_goes_on_and_nothing_runs_twice() -> None:
    kernels = Kernels()
    made = launches(kernels)
    for size in (4, 7, 9):
        made.launch([torch.ones(size)], (size,), 0, 5)
    assert kernels.log == ["first of 4", "second of 4", "first of 7", "compiled", "second of 7", "first of 9",
                           "second of 9"]  # fmt: skip


def test_a_compiler_that_fails_says_so_and_other_statuses_are_no_recording_s() -> None:
    kernels = Kernels()
    made = launches(kernels)
    kernels.fails = True
    with pytest.raises(CodegenError, match="kernel second"):
        made.launch([torch.ones(7)], (7,), 0, 5)
    with pytest.raises(NotRecordable, match="do not take these tensors as they lie"):
        made.launch([torch.ones(13)], (13,), 0, 5)
    kernels.fails = False
    made.launch([torch.ones(7)], (7,), 0, 5)
    assert kernels.log[-2:] == ["compiled", "second of 7"]
