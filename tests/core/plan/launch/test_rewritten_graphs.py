"""Captured launches written anew for other sizes, over the recording driver: grids, arguments, refusals, errors."""

from __future__ import annotations

import ctypes
import functools
import re

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.plan.launch.driver_lab import FakeDriver, kernel
from tests.core.plan.launch.graph_lab import FakeGraph
from turret.plan.launch.device import Segment
from turret.plan.launch.graphs import NativeGraph
from turret.plan.launch.table import (
    Clear,
    KernelLaunch,
    LaunchTable,
    SizeValue,
    SlotPointer,
    expression,
    segment_words,
)

STREAM = 77
SIZES = {"n": 0}
IMAGES = {"add_one.cubin": b"fake 3\0", "twice.cubin": b"fake 3\0"}
ONE = expression(1, {}, {})


def _launch(number: int, source: int, target: int, narrow: bool) -> KernelLaunch:
    parameters = (SlotPointer(source), SlotPointer(target), SizeValue(0, narrow))
    return KernelLaunch(number, parameters, (expression("cdiv(n, 8)", SIZES, {}), ONE, ONE), (source,))


STEPS = (_launch(0, 0, 1, False), Clear(SlotPointer(2), expression("n * 4", SIZES, {})), _launch(1, 1, 3, True))
"""``1 = 0 + 1``, ``2 = 0``, ``3 = 2 * 1`` over n floats."""


@attrs.frozen(eq=False)
class Captured:
    """A graph of a segment's launches, and the segment."""

    graph: FakeGraph
    segment: Segment
    native: NativeGraph

    def replay(self, x: torch.Tensor, segment: Segment | None = None, size: int | None = None) -> tuple[str, list]:
        """What the launches give for these numbers, each over memory of its own, and why they do not fit."""
        tensors = [x, *(torch.full_like(x, -1) for _ in range(3))]
        run = segment or self.segment

        def launch() -> None:
            if _run(run, [t.data_ptr() for t in tensors], x.numel() if size is None else size):
                raise RuntimeError("a status")

        return self.native.replay_as(launch, STREAM, self.graph.fake.launcher), tensors


def _run(segment: Segment, slots: list[int], size: int) -> int:
    return segment.run(segment.handle, (ctypes.c_void_p * 5)(*slots, 0), (ctypes.c_int64 * 1)(size), STREAM)


def _segment(fake: FakeDriver, steps: tuple) -> Segment:
    table = LaunchTable((kernel("add_one"), kernel("twice")), {"s": segment_words(4, steps)}, {})
    return fake.library(table, IMAGES, index=1, slots=5, sizes=1).function("s")


def captured(graph: FakeGraph, size: int = 5) -> Captured:
    segment = _segment(graph.fake, STEPS)
    x = torch.ones(size)
    graph.fake.driver.fake_capture(graph.handle)
    assert _run(segment, [x.data_ptr(), 64, 128, 192], size) == 0
    graph.fake.driver.fake_capture(None)
    return Captured(graph, segment, graph.read())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_one_graph_serves_any_sizes_with_their_grids(graph: FakeGraph, sizes: list[int]) -> None:
    graph.nodes.clear()
    graph.handle = ctypes.c_void_p(graph.fake.driver.fake_graph())
    made = captured(graph)
    for size in sizes:
        x = torch.randn(size)
        refused, (_, one, two, three) = made.replay(x)
        assert refused == ""
        assert torch.equal(one, x + 1) and torch.equal(two, torch.zeros(size)) and torch.equal(three, (x + 1) * 2)
        grids = [int(g) for line in graph.log("set") for g in re.findall(r"grid (\d+)", line)]
        assert all(grid == -(-size // 8) for grid in grids)
    assert graph.instantiated == 0 or made.native.rewritten <= 3 * len(sizes)


def test_only_nodes_that_changed_are_written(graph: FakeGraph) -> None:
    made = captured(graph)
    tensors = [torch.ones(9) for _ in range(5)]
    *slots, last = (t.data_ptr() for t in tensors)
    other = [*slots[:3], last]
    for where, written in ((slots, 3), (slots, 0), (other, 1), (slots, 1)):
        before = made.native.rewritten
        launch = lambda where=where: _run(made.segment, where, 9)  # noqa: E731
        assert made.native.replay_as(launch, STREAM, graph.fake.launcher) == ""
        assert made.native.rewritten - before == written


@pytest.mark.parametrize(
    ("steps", "size", "reason"),
    [
        (STEPS[:2], 5, "less is launched than was recorded"),
        ((*STEPS, STEPS[0]), 5, "more is launched than was recorded"),
        ((STEPS[0], STEPS[2], STEPS[1]), 5, "another kernel is launched than was recorded (memset)"),
        ((STEPS[2], STEPS[1], STEPS[0]), 5, "another kernel is launched than was recorded (add_one)"),
        ((STEPS[1], STEPS[0], STEPS[2]), 5, "memory is cleared where something else was recorded (add_one)"),
        (STEPS, 0, "less is launched than was recorded"),
    ],
)
def test_other_launches_are_refused_and_nothing_runs(graph: FakeGraph, steps: tuple, size: int, reason: str) -> None:
    made = captured(graph)
    refused, tensors = made.replay(torch.ones(5), _segment(graph.fake, steps), size)
    assert refused == reason and all(torch.equal(t, torch.full_like(t, -1)) for t in tensors[1:])
    assert not graph.log("launched", "launch")
    assert made.replay(torch.ones(7))[0] == "" and graph.log("launched"), "the next replay writes all of it anew"


def test_launches_that_fail_and_errors_of_the_driver_come_out(graph: FakeGraph) -> None:
    made = captured(graph)
    with pytest.raises(RuntimeError, match="a status"):  # not aligned: the segment launches nothing
        made.replay(torch.ones(6)[1:])
    graph.fake.driver.fake_fail_set(2)
    with pytest.raises(RuntimeError, match="writing node"):
        made.replay(torch.ones(8))
    x = torch.randn(8)
    refused, (_, one, _, three) = made.replay(x)
    assert refused == "" and torch.equal(one, x + 1) and torch.equal(three, (x + 1) * 2)


def test_a_thread_that_rewrote_a_graph_launches_as_before(graph: FakeGraph) -> None:
    made = captured(graph)
    assert made.replay(torch.ones(5))[0] == ""
    graph.fake.clear()
    tensors = [torch.ones(5) for _ in range(4)]
    assert _run(made.segment, [t.data_ptr() for t in tensors], 5) == 0
    assert [line.split()[0] for line in graph.fake.log()] == ["launch", "clear", "launch"]
    assert torch.equal(tensors[3], torch.full((5,), 4.0))


def _copied(graph: FakeGraph, target: int, source: int, nbytes: int) -> int:
    return graph.fake.launcher.turret_copy(1, target, source, nbytes, STREAM)


def captured_with_a_copy(graph: FakeGraph) -> tuple[tuple[Segment, Segment], NativeGraph]:
    """``1 = 0 + 1``, ``2 = 1``, ``3 = 2 * 1``: a kernel, a copy, a kernel; captured over memory that is not there."""
    first, last = (_segment(graph.fake, (_launch(n, s, t, bool(n)),)) for n, s, t in ((0, 0, 1), (1, 2, 3)))
    graph.fake.driver.fake_capture(graph.handle)
    _run_with_a_copy(graph, first, last, [0, 64, 128, 192], 5)
    graph.fake.driver.fake_capture(None)
    return (first, last), graph.read()


def _run_with_a_copy(graph: FakeGraph, first: Segment, last: Segment, slots: list[int], size: int) -> None:
    assert _run(first, slots, size) == 0
    if _copied(graph, slots[2], slots[1], 4 * size):
        raise RuntimeError("a status")
    assert _run(last, slots, size) == 0


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_copies_take_any_sizes_and_addresses(graph: FakeGraph, sizes: list[int]) -> None:
    graph.nodes.clear()
    graph.handle = ctypes.c_void_p(graph.fake.driver.fake_graph())
    segments, native = captured_with_a_copy(graph)
    for size in sizes:
        x = torch.randn(size)
        tensors = [x, *(torch.full_like(x, -1) for _ in range(3))]
        slots = [t.data_ptr() for t in tensors]
        run = functools.partial(_run_with_a_copy, graph, *segments, slots, size)
        assert native.replay_as(run, STREAM, graph.fake.launcher) == ""
        assert torch.equal(tensors[2], x + 1) and torch.equal(tensors[3], (x + 1) * 2)
        assert graph.log("copied") == [f"copied {4 * size}"] and not graph.log("copy")


@pytest.mark.parametrize("node", ["kernel", "memset", "copy of the host", "copy of a part"])
def test_a_copy_takes_the_place_of_no_other_work(graph: FakeGraph, node: str) -> None:
    number = {"kernel": lambda: graph.kernel("add_one", 64), "memset": lambda: graph.clear(64, 8)}.get(
        node, lambda: graph.copy(64, 128, 8)
    )()
    if node.startswith("copy"):
        graph.fake.driver.fake_copy_word(graph.nodes[number], *((4, 1) if node.endswith("host") else (11, 8)))
    native = graph.read()
    refused = native.replay_as(lambda: _copied(graph, 256, 512, 8), STREAM, graph.fake.launcher)
    assert refused.startswith("memory of the host" if node.startswith("copy") else "memory is copied where")
    assert not graph.log("launched", "copy")


def test_a_copy_outside_of_a_recording_runs_in_the_device_s_context(graph: FakeGraph) -> None:
    x, y = torch.arange(6.0), torch.zeros(6)
    assert _copied(graph, y.data_ptr(), x.data_ptr(), 20) == 0
    assert y.tolist() == [0, 1, 2, 3, 4, 0] and graph.log("copy") == [f"copy 20 stream {STREAM} in 1001"]
    graph.fake.driver.fake_fail(1)
    assert _copied(graph, y.data_ptr(), x.data_ptr(), 20) != 0
    assert "copying memory: invalid argument" in graph.fake.launcher.turret_message().decode()
