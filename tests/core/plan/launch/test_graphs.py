"""Captured graphs over the recording driver: nodes and their arguments, patches, replays over other memory, errors."""

from __future__ import annotations

import ctypes
import mmap
import struct
import subprocess
import threading
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.plan.launch.graph_lab import CONTEXT, FakeGraph, floats, size, words
from turret.errors import CodegenError, TurretError
from turret.hooks.graph_capture import AddressWord, Patch
from turret.plan.launch.driver_library import GRAPHS
from turret.plan.launch.graphs import begin_capture, captured_nodes, clear_stack, host_memory, make_stream
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.libraries import open_anew

STREAM = 77


def test_nodes_have_names_kinds_and_what_they_were_handed(graph: FakeGraph) -> None:
    graph.kernel("scale_rows", 64, b"abc", 128, b"\1\2\3\4")
    graph.kernel("add_one", b"0123456789abcdef", in_buffer=True, by_kernel=True)
    graph.copy(256, 512, 24)
    graph.clear(1024, 40)
    graph.kernel("nothing")
    nodes = graph.read().nodes
    assert [node.kind for node in nodes] == ["kernel", "kernel", "copy", "clear", "kernel"]
    assert [node.name for node in nodes] == ["scale_rows", "add_one", "memcpy", "memset", "nothing"]
    assert nodes[0].arguments == struct.pack("<Q3s5xQ4s4x", 64, b"abc", 128, b"\1\2\3\4")
    assert nodes[1].arguments == b"0123456789abcdef"
    assert [words(nodes[2].arguments)[n] for n in (6, 17, 22)] == [256, 512, 24]
    assert words(nodes[3].arguments)[0] == 1024 and nodes[4].arguments == b""


def test_symbols_are_shown_as_c_plus_plus_has_them(graph: FakeGraph) -> None:
    graph.kernel("_ZN2at6native4fillEPfi", 64)
    assert graph.read().nodes[0].name == "at::native::fill(float*, int)"


def test_work_without_memory_is_no_node_and_what_is_not_known_is_other(graph: FakeGraph) -> None:
    graph.node(5)
    graph.node(7)
    graph.node(3)
    graph.hide(graph.kernel("secret", 64))
    graph.hide(graph.copy(64, 128, 8))
    graph.copy(64, 128, 8, height=2)
    nodes = graph.read().nodes
    assert [(node.kind, bool(node.arguments)) for node in nodes] == [("other", False)] * 3 + [("other", True)]
    assert nodes[0].name == "node of type 3" and words(nodes[3].arguments)[6] == 64


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nodes_come_in_an_order_that_their_edges_allow(graph: FakeGraph, data: st.DataObject) -> None:
    made = FakeGraph(graph.fake, graph.library)
    count = data.draw(st.integers(1, 8))
    order = data.draw(st.permutations(range(count)))  # of creation: position in time of each node
    for number in range(count):
        made.kernel(f"k{number}", number)
    pairs = [(a, b) for a in range(count) for b in range(count) if order[a] < order[b]]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    for edge in edges:
        made.edge(*edge)
    found = [words(node.arguments)[0] for node in made.read().nodes]
    assert sorted(found) == list(range(count)) and all(found.index(a) < found.index(b) for a, b in edges)
    if all(a < b for a, b in edges):
        assert found == list(range(count)), "in the order of creation, where nothing speaks against it"


@pytest.mark.parametrize("in_buffer", [False, True])
@pytest.mark.parametrize("by_kernel", [False, True])
def test_patched_kernels_work_on_other_memory(graph: FakeGraph, in_buffer: bool, by_kernel: bool) -> None:
    x, y, z = floats(1, 2), floats(0, 0), floats(0, 0)
    graph.kernel("add_one", x.data_ptr(), y.data_ptr(), size(x), in_buffer=in_buffer, by_kernel=by_kernel)
    made = graph.read()
    made.replay(STREAM)
    made.patch([Patch(0, 8, z.data_ptr())])
    assert y.tolist() == [2, 3] and z.tolist() == [0, 0]
    made.replay(STREAM)
    assert z.tolist() == [2, 3]
    assert words(made.nodes[0].arguments) == (x.data_ptr(), z.data_ptr(), 2)
    expected = [f"launched on {STREAM} in {CONTEXT}", "ran add_one"]
    assert graph.log("launched", "ran", "set") == [*expected, "set add_one", *expected]


def test_copies_and_clears_are_patched(graph: FakeGraph) -> None:
    x, y, z = floats(1, 2), floats(3, 4), floats(5, 6)
    graph.copy(x.data_ptr(), y.data_ptr(), 8)
    graph.clear(x.data_ptr(), 8)
    made = graph.read()
    made.patch([Patch(0, 17 * 8, z.data_ptr()), Patch(1, 0, y.data_ptr())])
    made.replay(STREAM)
    assert x.tolist() == [1, 2] and z.tolist() == [1, 2]
    assert y.view(torch.uint8).tolist() == [7] * 8
    assert graph.log("set") == [f"set memcpy in {CONTEXT}", f"set memset in {CONTEXT}"]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5),
    turns=st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=6),
)
def test_a_bound_replay_sets_the_nodes_that_hold_what_moved(graph: FakeGraph, shape: list, turns: list) -> None:
    """Each node reads one of four tensors and writes another; each turn says which of three places each is at."""
    places = [[floats(10 * n + k, n) for k in range(3)] for n in range(4)]
    made = FakeGraph(graph.fake, graph.library)
    for source, target in shape:
        made.kernel("add_one", *(places[n][0].data_ptr() for n in (source, target)), struct.pack("<q", 2))
    native = made.read()
    found = [
        [AddressWord(k, 8 * side) for k, pair in enumerate(shape) for side in (0, 1) if pair[side] == n]
        for n in range(4)
    ]
    current = (0,) * 4
    replay = native.bind(found, [places[n][0].data_ptr() for n in range(4)])
    for turn in turns:
        values = [places[n][turn[n]].clone() for n in range(4)]
        replay([places[n][turn[n]].data_ptr() for n in range(4)], STREAM)
        for source, target in shape:
            values[target] = values[source] + 1
        assert [places[n][turn[n]].tolist() for n in range(4)] == [value.tolist() for value in values]
        moved = {n for n in range(4) if turn[n] != current[n]}
        assert len(made.log("set")) == sum(bool({*pair} & moved) for pair in shape)
        current = turn


def test_an_address_within_what_moved_keeps_its_distance(graph: FakeGraph) -> None:
    x, y = floats(1, 2, 3), floats(4, 5, 6)
    graph.kernel("twice", x.data_ptr() + 4, y.data_ptr() + 8, b"\1\0\0\0")
    replay = graph.read().bind([[AddressWord(0, 0, 4), AddressWord(0, 8, 8)]], [0])
    replay([x.data_ptr()], STREAM)
    assert x.tolist() == [1, 2, 4] and y.tolist() == [4, 5, 6]


def test_addresses_can_be_written_for_somebody_else_s_launch(graph: FakeGraph) -> None:
    x, y = floats(1), floats(0)
    graph.kernel("add_one", 0, y.data_ptr(), size(x))
    replay = graph.read().bind([[AddressWord(0, 0)]], [0])
    replay([x.data_ptr()], STREAM, False)
    assert graph.log("set", "launched") == ["set add_one"]


def test_errors_of_the_driver_name_the_node_and_are_made_good_by_the_next_replay(graph: FakeGraph) -> None:
    x, y, z = floats(1), floats(5), floats(0)
    graph.kernel("add_one", x.data_ptr(), z.data_ptr(), size(x))
    graph.kernel("twice", x.data_ptr(), x.data_ptr(), b"\1\0\0\0")
    replay = graph.read().bind(
        [[AddressWord(0, 0), AddressWord(1, 0)], [AddressWord(0, 8)]], [x.data_ptr(), z.data_ptr()]
    )
    graph.fake.driver.fake_fail_set(2)
    with pytest.raises(RuntimeError, match=r"^patching node 1 \(twice\): invalid argument$"):
        replay([y.data_ptr(), z.data_ptr()], STREAM)
    assert not graph.log("launched")
    replay([y.data_ptr(), z.data_ptr()], STREAM)
    assert z.item() == 6 and x.item() == 10
    graph.fake.driver.fake_fail(1)
    with pytest.raises(RuntimeError, match=r"^launching a graph: invalid argument$"):
        replay([y.data_ptr(), z.data_ptr()], STREAM)


def test_addresses_that_have_no_place_are_refused(graph: FakeGraph) -> None:
    graph.kernel("add_one", 64, 128, 1)
    graph.copy(64, 128, 8, height=2)
    made = graph.read()
    for word in (AddressWord(0, 17), AddressWord(0, -8), AddressWord(-1, 0), AddressWord(2, 0)):
        text = f"an address at byte {word.offset} of node {word.node}, where a graph of 2 nodes has no arguments"
        with pytest.raises(TurretError, match=text):
            made.bind([[word]], [64])
        with pytest.raises(RuntimeError, match=text):
            made.patch([Patch(0, 0, 1), Patch(word.node, word.offset, 1)])
    with pytest.raises(TurretError, match=r"byte 48 of node 1 \(memcpy\), which cannot be patched"):
        made.bind([[AddressWord(1, 48)]], [64])
    with pytest.raises(TurretError, match="2 addresses for 1 arguments"):
        made.bind([[]], [1, 2])
    with pytest.raises(TurretError, match="takes 1 addresses, and was given 2"):
        made.bind([[]], [1])([1, 2], STREAM)
    assert words(made.nodes[0].arguments) == (64, 128, 1) and not graph.log("set", "launched")


def test_graphs_that_cannot_be_read_say_why(graph: FakeGraph) -> None:
    graph.kernel("add_one", 64)
    with pytest.raises(TurretError, match="a captured graph cannot be read: cuDeviceGet: unknown error"):
        graph.read(device=7)
    graph.handle = ctypes.c_void_p(0)
    with pytest.raises(TurretError, match="cannot be read: listing a graph's nodes: unknown error"):
        graph.read()


def test_without_a_driver_the_error_says_so(built_graphs: bytes) -> None:
    with pytest.raises(CodegenError, match=r"the CUDA driver cannot be opened: .*libnone"):
        GRAPHS.open(open_anew(built_graphs), "libnone.so.1")
    with pytest.raises(
        CodegenError, match=r"the CUDA driver has no cuInit; recorded graphs need a driver of CUDA 12\.4"
    ):
        GRAPHS.open(open_anew(built_graphs), "libc.so.6")


def test_without_a_compiler_the_error_says_what_for(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("turret.storage.prebuilt.find", lambda key, file: None)
    with pytest.raises(CodegenError, match=r"the graph patcher needs a C\+\+ compiler"):
        GRAPHS.build(ArtifactCache(tmp_path))


def test_what_is_only_read_is_not_instantiated_and_the_rest_once(graph: FakeGraph) -> None:
    graph.kernel("add_one", 0, 0, 0)
    made = graph.read()
    assert made.nodes and graph.instantiated == 0
    made.patch([Patch(0, 16, 0)])
    replay = made.bind([[AddressWord(0, 0)]], [64])
    for address in (0, 128):
        replay([address], STREAM)
        made.replay(STREAM)
    assert graph.instantiated == 1


def test_the_thread_s_context_is_left_as_it_was(graph: FakeGraph) -> None:
    graph.fake.driver.fake_current.restype = ctypes.c_void_p
    graph.kernel("add_one", 0, 0, 0)
    graph.fake.driver.fake_set_current(ctypes.c_void_p(5))
    made = graph.read()
    made.replay(STREAM)
    made.patch([Patch(0, 0, 64)])
    assert graph.fake.driver.fake_current() == 5
    assert graph.log("launched") == [f"launched on {STREAM} in {CONTEXT}"]


def test_threads_replay_one_recording_each_over_its_own_memory(graph: FakeGraph) -> None:
    graph.kernel("add_one", 64, 128, struct.pack("<q", 4))
    graph.kernel("twice", 128, 128, struct.pack("<i", 4))
    replay = graph.read().bind(
        [[AddressWord(0, 0)], [AddressWord(0, 8), AddressWord(1, 0), AddressWord(1, 8)]], [64, 128]
    )
    wrong: list[float] = []

    def work(value: float) -> None:
        for turn in range(200):
            x, y = floats(*[value + turn] * 4), floats(*[0.0] * 4)
            replay([x.data_ptr(), y.data_ptr()], STREAM)
            wrong.extend(y[y != 2 * (x + 1)].tolist())

    threads = [threading.Thread(target=work, args=(1000.0 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.sampled_from(["first", "second", "patch"]), st.integers(0, 2)), max_size=12))
def test_whoever_wrote_a_graph_last_a_bound_replay_works_where_it_is_told(
    graph: FakeGraph, turns: list[tuple[str, int]]
) -> None:
    made = FakeGraph(graph.fake, graph.library)
    places = [floats(n) for n in range(3)]
    made.kernel("add_one", *[places[0].data_ptr()] * 2, size(places[0]))
    read = made.read()
    words = [AddressWord(0, 0), AddressWord(0, 8)]
    bound = {name: read.bind([words], [places[0].data_ptr()]) for name in ("first", "second")}
    expected = [0.0, 1.0, 2.0]
    for who, number in turns:
        address = places[number].data_ptr()
        if who == "patch":
            read.patch([Patch(0, w.offset, address) for w in words])
        else:
            bound[who]([address], STREAM)
            expected[number] += 1
    assert [p.item() for p in places] == expected


def test_a_bound_replay_keeps_its_graph(graph: FakeGraph) -> None:
    x = floats(1)
    graph.kernel("add_one", x.data_ptr(), x.data_ptr(), size(x))
    made = graph.read()
    gone, replay = weakref.ref(made), made.bind([], [])
    del made
    replay([], STREAM)
    assert x.item() == 2 and gone() is not None
    del replay
    assert gone() is None


def test_every_stream_that_is_made_is_another_one(graph: FakeGraph) -> None:
    assert len({make_stream(1, graph.library) for _ in range(3)}) == 3
    assert graph.log("stream") == [f"stream of 1 in {CONTEXT}"] * 3
    graph.fake.driver.fake_fail(1)
    with pytest.raises(RuntimeError, match=r"^making a stream: invalid argument$"):
        make_stream(1, graph.library)


def test_captures_of_one_thread_begin_on_a_stream_and_say_what_forbids_them(graph: FakeGraph) -> None:
    begin_capture(1, STREAM, graph.library)
    assert graph.log("capture") == [f"capture of 1 on {STREAM} in {CONTEXT}"]
    graph.fake.driver.fake_fail(1)
    with pytest.raises(RuntimeError, match=r"^beginning a capture: invalid argument$"):
        begin_capture(1, STREAM, graph.library)


def test_nodes_of_a_capture_under_way_are_counted(graph: FakeGraph) -> None:
    with pytest.raises(RuntimeError, match=r"^nothing is captured on this stream$"):
        captured_nodes(1, STREAM, graph.library)
    graph.fake.driver.fake_capturing(STREAM, graph.handle)
    x = floats(1)
    for count in range(3):
        assert captured_nodes(1, STREAM, graph.library) == count
        graph.kernel("add_one", x.data_ptr(), x.data_ptr(), size(x))
    graph.fake.driver.fake_fail(1)
    with pytest.raises(RuntimeError, match=r"^counting captured nodes: invalid argument$"):
        captured_nodes(1, STREAM, graph.library)


LEFTOVERS = """
extern "C" __attribute__((noinline)) void fill() {
  volatile long words[4096];
  for (int n = 0; n < 4096; ++n) words[n] = 77;
}
extern "C" __attribute__((noinline)) int found() {
  volatile long words[4096];
  int count = 0;
  for (int n = 0; n < 4096; ++n) count += words[n] == 77;
  return count;
}
"""


def test_what_calls_left_on_the_stack_is_gone_once_it_was_cleared(graph: FakeGraph, tmp_path: Path) -> None:
    source, library = tmp_path / "leftovers.cpp", tmp_path / "leftovers.so"
    source.write_text(LEFTOVERS)
    subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    native = ctypes.CDLL(str(library))

    def found() -> int:  # As far down as what clear_stack calls: frame hooks give each Python frame a C frame.
        return native.found()

    native.fill()
    assert found() > 2048
    native.fill()
    clear_stack(graph.library)
    assert found() == 0


def test_the_host_s_memory_is_what_the_process_can_read() -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE)
    mapped = ctypes.addressof(ctypes.c_char.from_buffer(page))
    code = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    # As drivers reserve the addresses of a device's memory.
    hidden = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_WRITE)
    ranges = host_memory()
    for address in (mapped, code, id(page)):
        assert any(address in memory for memory in ranges)
    for address in (0, 1, 1 << 62, ctypes.addressof(ctypes.c_char.from_buffer(hidden))):
        assert not any(address in memory for memory in ranges)
