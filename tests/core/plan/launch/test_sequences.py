"""Launches of libraries run between segments of a plan, with the addresses of the call at hand."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest
import torch

from tests.core.plan.launch.driver_lab import FakeDriver, kernel
from tests.core.plan.launch.graph_lab import FakeGraph, floats, size
from turret.errors import CodegenError
from turret.plan.launch.device import Segment
from turret.plan.launch.enums import Status
from turret.plan.launch.sequences import KnownFill, KnownLaunch, make_sequence
from turret.plan.launch.table import KernelLaunch, LaunchTable, SizeValue, SlotPointer, segment_words

ONE = (0, 1)
STREAM = 77
IMAGES = {"add_one.cubin": b"fake 3\0"}


def known(graph: FakeGraph, place: int, *places: tuple[int, int, int]) -> KnownLaunch:
    """A node's launch with addresses at places of its arguments."""
    read = graph.read()
    return KnownLaunch(read.launch_words(place), read.nodes[place].words, places)


def run(sequence: Segment, slots: Sequence[int], sizes: Sequence[int] = (0,)) -> int:
    table, values = (ctypes.c_void_p * len(slots))(*slots), (ctypes.c_int64 * len(sizes))(*sizes)
    return sequence.run(sequence.handle, ctypes.addressof(table), ctypes.addressof(values), STREAM)


def sequence(
    fake: FakeDriver, parts: Sequence[int | KnownLaunch | KnownFill], aligned: Sequence[int] = (), entries: int = 3
) -> Segment:
    made = make_sequence(1, parts, entries, aligned, (1,), None, fake.launcher)
    fake.clear()
    return made


@pytest.mark.parametrize("in_buffer", [False, True])
@pytest.mark.parametrize("by_kernel", [False, True])
def test_a_recorded_kernel_runs_on_the_memory_of_each_run(
    fake: FakeDriver, graph: FakeGraph, in_buffer: bool, by_kernel: bool
) -> None:
    x, y = floats(1, 2, 3), floats(0, 0, 0)
    node = graph.kernel("twice", 11, 22, size(x)[:4] + bytes(4), in_buffer=in_buffer, by_kernel=by_kernel)
    launch = known(graph, node, (0, 0, 4), (8, 2, 0))  # from the second element of what entry 0 holds
    made = sequence(fake, [launch])
    z = floats(7, 1, 2, 3)
    assert run(made, [z.data_ptr(), 0, y.data_ptr()]) == 0
    assert y.tolist() == [2, 4, 6]
    assert [line for line in fake.log() if "attribute" in line] == ["attribute 4 = 2"], "clusters are those recorded"
    assert f"stream {STREAM}" in fake.log()[-1]


def test_segments_fills_and_recorded_kernels_run_in_their_order(fake: FakeDriver, graph: FakeGraph) -> None:
    add = KernelLaunch(0, (SlotPointer(0), SlotPointer(1), SizeValue(0)), (ONE, ONE, ONE))
    library = fake.library(LaunchTable((kernel("add_one"),), {"s": segment_words(2, (add,))}, {}), IMAGES, index=1)
    x, y = floats(1, 2), floats(5, 5)
    twice = known(graph, graph.kernel("twice", 0, 0, size(x)), (0, 1, 0), (8, 1, 0))
    segment = library.function("s").handle
    made = sequence(fake, [segment, twice, KnownFill(1, 4, 0x3F800000, 4, 1), twice, segment])
    assert run(made, [x.data_ptr(), y.data_ptr(), 0], [1]) == 0
    # y = x + 1 (one element), y * 2, y[1] = 1.0, y * 2, y = x + 1
    assert y.tolist() == [2, 2]
    kinds = [line.split()[0] + " " + line.split()[1] for line in fake.log() if "launch" in line or "fill" in line]
    assert kinds == ["launch add_one", "launch_ex twice", "fill 1", "launch_ex twice", "launch add_one"]
    clear = sequence(fake, [KnownFill(1, 0, 0, 1, 8)])
    assert run(clear, [x.data_ptr(), y.data_ptr(), 0]) == 0
    assert y.tolist() == [0, 0]


def test_nothing_is_launched_where_memory_is_not_aligned_and_a_copy_of_it_is(
    fake: FakeDriver, graph: FakeGraph
) -> None:
    memory = torch.zeros(16)
    begin = -memory.data_ptr() % 16 // 4 + 1
    x, y = memory[begin : begin + 3].fill_(2), floats(0, 0, 0)
    launch = known(graph, graph.kernel("twice", 0, 0, size(x)), (0, 0, 0), (8, 1, 0))
    made = sequence(fake, [launch], aligned=[0])
    slots = (ctypes.c_void_p * 3)(x.data_ptr(), y.data_ptr(), 0)
    sizes = (ctypes.c_int64 * 1)()
    status = made.run(made.handle, ctypes.addressof(slots), ctypes.addressof(sizes), STREAM)
    assert status == Status.MISALIGNED
    assert not [line for line in fake.log() if line.startswith("launch")]
    made.recover(status, slots, sizes, STREAM, {0: x}, "a call")
    assert y.tolist() == [4, 4, 4]
    assert slots[0] == x.data_ptr()


def test_what_the_driver_says_is_in_the_error(fake: FakeDriver, graph: FakeGraph) -> None:
    x = floats(1)
    made = sequence(fake, [known(graph, graph.kernel("twice", 0, 0, size(x)), (0, 0, 0), (8, 1, 0))])
    fake.driver.fake_fail(1)
    assert run(made, [x.data_ptr(), x.data_ptr(), 0]) == Status.DRIVER_ERROR
    with pytest.raises(RuntimeError, match="launching a library's kernel: invalid argument"):
        made.recover(Status.DRIVER_ERROR, None, None, STREAM, {}, "a call")


@pytest.mark.parametrize(
    ("offset", "entry"),
    [(24, 0), (17, 0), (-8, 0), (0, 3), (0, -1)],
    ids=["behind", "over the end", "before", "no", "none"],
)
def test_places_outside_of_arguments_and_table_are_refused(
    fake: FakeDriver, graph: FakeGraph, offset: int, entry: int
) -> None:
    launch = known(graph, graph.kernel("twice", 0, 0, size(floats(1))), (offset, entry, 0))
    with pytest.raises(CodegenError, match="not well formed"):
        sequence(fake, [launch])
    with pytest.raises(CodegenError, match="not well formed"):
        sequence(fake, [KnownFill(0, 0, 0, 2, 1)])
