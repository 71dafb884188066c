"""CUDA's pools and captures over a stand-in for torch's CUDA build: what is asked of it, and in which order."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turret.errors import TurretError
from turret.hooks.graph_capture import AddressWord, HeldBlock, Patch, RecordedNode
from turret.plugins.devices import cuda_graphs
from turret.plugins.devices.cuda_graphs import CudaCapture, CudaPool

SEGMENT = 1 << 20


class Allocator:
    """Blocks of one private pool, with the checks that torch's bindings make."""

    def __init__(self) -> None:
        self.blocks: dict[int, bool] = {}  # those in use, and whether a tensor owns them
        self.users, self.underway, self.log = 0, False, []
        self.host_users: int | None = None  # there were none yet

    def new_pool(self) -> tuple[int, int]:
        self.host_users = None
        return 0, 7

    def begin(self, index: int, pool: tuple[int, int]) -> None:
        assert not self.underway, "already recording to mempool_id"
        self.users, self.underway = self.users + 1, True

    def begin_on_host(self) -> None:
        assert self.host_users != 0, "a pool that had no graph any more is not taken again"
        self.host_users = (self.host_users or 0) + 1

    def end(self, index: int, pool: tuple[int, int]) -> None:
        if not self.underway:
            raise RuntimeError("not currently recording to mempool_id")
        self.underway = False

    def release(self, index: int, pool: tuple[int, int]) -> None:
        self.users -= 1

    def take(self) -> int:
        address = next(a for a in range(SEGMENT, 2 * SEGMENT, 512) if a not in self.blocks)
        self.blocks[address] = True
        return address

    def free(self, address: int) -> None:
        del self.blocks[address]

    def state(self, index: int, pool: tuple[int, int]) -> frozenset[int]:
        assert self.users, "could not find pool of id"
        return frozenset(self.blocks)

    def set_state(self, index: int, state: frozenset[int], stale: list[int], owners: list[int]) -> None:
        if set(self.blocks) - state:
            raise RuntimeError("Any stale tensors which are being manually freed must be passed to set checkpoint")
        self.blocks = dict.fromkeys(state, False)

    def snapshot(self, what: Any) -> dict[str, Any]:
        if len(what) == 3 and not self.knows_traces:
            raise TypeError("incompatible function arguments")
        states = ["active_allocated" if a in self.blocks else "inactive" for a in range(SEGMENT, 2 * SEGMENT, 512)]
        blocks = [{"size": 512, "state": state} for state in states]
        own = {"device": 0, "address": SEGMENT, "total_size": SEGMENT, "segment_pool_id": (0, 7), "blocks": blocks}
        foreign = {**own, "address": 4 * SEGMENT, "segment_pool_id": (0, 8)}
        return {"segments": [own, foreign, {**own, "device": 1}]}

    knows_traces = True


class Stream:
    """A stream that notes whom it waits for."""

    cuda_stream = 5

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Generator:
    offset = 0
    is_captured = False

    def get_offset(self) -> int:
        return self.offset


class Graph:
    """A capture; where one was ``broken``, the driver ends it with an error, and torch tells nobody of its end."""

    def __init__(self, torch_: Torch, keep_graph: bool) -> None:
        assert keep_graph
        self.torch, self.has_ended = torch_, False

    def __del__(self) -> None:
        if self.has_ended:
            self.torch.allocator.release(0, (0, 7))
            self.torch.allocator.host_users -= 1

    def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local" and not self.torch.capturing
        self.torch.allocator.begin(0, pool)
        self.torch.allocator.begin_on_host()
        self.torch.capturing = self.torch.generator.is_captured = True

    def capture_end(self) -> None:
        assert self.torch.capturing, "the stream is not capturing"
        self.torch.capturing = False
        if self.torch.broken:
            self.torch.broken = False
            raise RuntimeError("operation failed due to a previous error during capture")
        self.torch.allocator.end(0, (0, 7))
        self.torch.generator.is_captured = False
        self.has_ended = True
        self.torch.log.append("captured")

    def instantiate(self) -> None:
        pass

    def raw_cuda_graph(self) -> int:
        return 11

    def raw_cuda_graph_exec(self) -> int:
        return 12

    def replay(self) -> None:
        self.torch.log.append(f"torch launched on {self.torch.current.name}")
        self.torch.generator.offset += self.torch.draws


class Native:
    """What reads a graph: it writes down what it is asked for."""

    log: Any = None
    torch: Any = None

    def __init__(self, device: int, graph: int, instantiate: Callable[[], int]) -> None:
        assert (device, graph, instantiate()) == (0, 11, 12)
        self.nodes = (RecordedNode("kernel", "k", bytes(8)),)
        self.length = self.torch.captured_nodes - self.torch.left_out

    def instantiate(self) -> None:
        """Done already."""

    def patch(self, patches: Sequence[Patch]) -> None:
        self.log.append(f"patched {[p.address for p in patches]}")

    def replay(self, stream: int) -> None:
        self.log.append(f"launched on {stream}")

    def bind(self, arguments: Sequence[Sequence[AddressWord]], addresses: Sequence[int]) -> Callable[..., None]:
        return lambda new, stream, launches: self.log.append(f"bound {new} {stream if launches else 'written'}")


MADE = 7000
"""The handle of a stream that is made for a pool."""


class Block:
    """Memory that notes when it is taken and given back."""

    def __init__(self, log: list[str], nbytes: int) -> None:
        self.log, self.nbytes = log, nbytes
        log.append(f"took {nbytes}")

    def __del__(self) -> None:
        self.log.append(f"gave back {self.nbytes}")


class Torch:
    """The parts of a CUDA build that are used."""

    def __init__(self) -> None:
        self.allocator, self.generator, self.log = Allocator(), Generator(), []
        self.capturing = self.broken = False
        self.draws = self.captured_nodes = self.left_out = self.allocated = 0
        self.current = self.user = Stream(self.log, "user")

    def block(self, index: int, nbytes: int) -> Block:
        assert index == 0
        self.allocated += nbytes
        return Block(self.log, nbytes)

    def begin_capture(self, index: int, stream: int) -> None:
        assert (index, stream) == (0, Stream.cuda_stream) and not self.capturing
        self.capturing = True
        self.log.append("began again")

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Torch:
    made, of_torch = Torch(), torch.cuda
    allocator = made.allocator
    functions = {
        "_graph_pool_handle": allocator.new_pool,
        "_cuda_beginAllocateCurrentThreadToPool": allocator.begin,
        "_cuda_endAllocateToPool": allocator.end,
        "_cuda_releasePool": allocator.release,
        "_cuda_getCheckpointState": allocator.state,
        "_cuda_setCheckpointPoolState": allocator.set_state,
        "_cuda_memorySnapshot": allocator.snapshot,
        "_cuda_cudaCachingAllocator_raw_delete": allocator.free,
        "_cuda_getCurrentBlasHandle": lambda: made.log.append("handle"),
        "_cuda_clearCublasWorkspaces": lambda: made.log.append("cleared"),
        "_cuda_getCurrentRawStream": lambda index: 0 if made.current is made.user else 5,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(of_torch, "is_available", lambda: True)
    monkeypatch.setattr(cuda_graphs, "make_stream", lambda index: MADE + index)
    external = lambda stream, device: Stream(made.log, "side" if stream == MADE else f"stream {stream}")  # noqa: E731
    monkeypatch.setattr(of_torch, "ExternalStream", external)
    monkeypatch.setattr(cuda_graphs, "_streams", cuda_graphs._Streams())
    monkeypatch.setattr(of_torch, "default_stream", lambda index: made.user)
    monkeypatch.setattr(of_torch, "current_stream", lambda index: made.current)
    monkeypatch.setattr(of_torch, "stream", made.stream)
    monkeypatch.setattr(of_torch, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(of_torch, "CUDAGraph", lambda keep_graph: Graph(made, keep_graph))
    monkeypatch.setattr(of_torch, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(of_torch, "default_generators", (made.generator,))
    monkeypatch.setattr(cuda_graphs, "NativeGraph", Native)
    monkeypatch.setattr(cuda_graphs, "begin_capture", made.begin_capture)
    monkeypatch.setattr(cuda_graphs, "captured_nodes", lambda index, stream: made.captured_nodes)
    monkeypatch.setattr(cuda_graphs, "clear_stack", lambda: made.log.append("stack cleared"))
    monkeypatch.setattr(Native, "log", made.log)
    monkeypatch.setattr(Native, "torch", made)
    stats = lambda index: {"allocated_bytes": {"all": {"allocated": made.allocated}}}  # noqa: E731
    monkeypatch.setattr(of_torch, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(cuda_graphs, "_block", made.block)
    return made


def test_a_pool_allocates_on_its_stream_and_gives_workspaces_back(cuda: Torch) -> None:
    pool = CudaPool(0)
    cuda.log.clear()
    with pool.allocating():
        assert cuda.allocator.underway and cuda.current.name == "side"
        cuda.log.append("work")
    assert cuda.log == ["side waits for user", "handle", "cleared", "work", "cleared", "user waits for side"]
    assert not cuda.allocator.underway and cuda.allocator.users == 1
    del pool
    assert cuda.allocator.users == 0


def test_pools_have_streams_of_their_own_which_they_hand_on(cuda: Torch) -> None:
    first, second = CudaPool(0), CudaPool(0)
    assert first.stream is not second.stream
    given_back = first.stream
    del first
    assert CudaPool(0).stream is given_back


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.tuples(st.sampled_from(["take", "free", "checkpoint", "restore"]), st.integers(0, 9))))
@pytest.mark.parametrize("knows_traces", [True, False])
def test_what_is_restored_is_in_use_and_what_no_tensor_owns_is_freed_first(
    cuda: Torch, knows_traces: bool, actions: list[tuple[str, int]]
) -> None:
    allocator = cuda.allocator
    allocator.blocks.clear()
    allocator.knows_traces = knows_traces
    pool, saved = CudaPool(0), []
    for action, number in actions:
        owned = [a for a, is_owned in allocator.blocks.items() if is_owned]
        if action == "take":
            allocator.take()
        elif action == "free" and owned:
            allocator.free(owned[number % len(owned)])
        elif action == "checkpoint":
            saved.append((pool.checkpoint(), sorted(allocator.blocks)))
        elif action == "restore" and saved:
            checkpoint, blocks = saved[number % len(saved)]
            dead = blocks[number % 3 :: 2]
            if owned:
                with pytest.raises(TurretError, match=f"while tensors allocated from it live: at .*{owned[0]:#x}"):
                    pool.restore(checkpoint, dead)
                continue
            pool.restore(checkpoint, [*dead, *dead])
            assert allocator.blocks == dict.fromkeys(set(blocks) - {*dead}, False)
    assert pool.reserved_bytes == SEGMENT


def test_an_address_that_is_no_block_s_cannot_be_dead(cuda: Torch) -> None:
    pool = CudaPool(0)
    with pytest.raises(TurretError, match="begins at the dead addresses 0x40"):
        pool.restore(pool.checkpoint(), [64])


def test_a_recording_is_captured_on_the_pool_s_stream_and_launched_by_the_driver(cuda: Torch) -> None:
    pool = CudaPool(0)
    cuda.log.clear()
    made = CudaCapture().record(0, lambda: cuda.log.append(f"runs on {cuda.current.name}"), pool)
    expected = [
        "side waits for user",
        "handle",
        "cleared",
        "runs on side",
        "captured",
        "cleared",
        "user waits for side",
    ]
    assert cuda.log == expected and made.nodes == (RecordedNode("kernel", "k", bytes(8)),)
    cuda.log.clear()
    replay = made.bind([[AddressWord(0, 0)]], [64])
    made.patch([Patch(0, 0, 96)])
    made.replay(0)  # the first shows that no numbers are drawn
    made.replay(5)
    replay([128], 5)
    assert cuda.log == ["patched [96]", "torch launched on user", "launched on 5", "bound [128] 5"]


class OnDevice:
    """A tensor of the host that says it lies elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.device = tensor, torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def test_memory_is_held_back_from_a_library_call_and_given_back_after_it(cuda: Torch) -> None:
    capture = CudaCapture()

    def run() -> None:
        calls = capture.observer()
        for number in range(2):
            calls.begin([])
            cuda.log.append(f"call {number}")
            calls.end()
        calls.begin([])
        raise KeyError("the user's")

    with pytest.raises(KeyError):
        capture.record(0, run, held_back={1: [HeldBlock(64), HeldBlock(32, is_hole=True)], 2: [HeldBlock(16)]})
    del run
    gc.collect()
    told = [line for line in cuda.log if line.startswith(("took", "gave", "call"))]
    assert told == ["call 0", "took 64", "took 32", "gave back 32", "call 1", "gave back 64", "took 16", "gave back 16"]
    assert not capture.record(0, lambda: None).calls


def test_calls_of_a_capture_with_nodes_that_are_left_out_are_not_known(cuda: Torch) -> None:
    capture = CudaCapture()
    for left_out in (0, 1):
        cuda.left_out = left_out
        made = capture.record(0, lambda: (capture.observer().begin([]), capture.observer().end()))
        assert len(made.calls) == 1 - left_out


def test_library_calls_are_noted_with_their_nodes_and_where_their_tensors_lie(cuda: Torch) -> None:
    capture = CudaCapture()
    tensors, results = [torch.ones(4)[1:], torch.ones(3, 3).t()], [torch.ones(5), torch.ones(2, 3)]

    def run() -> None:
        calls = capture.observer()
        for number, tensor in enumerate(tensors):
            calls.begin([OnDevice(tensor), torch.ones(())])
            assert cuda.log[-1] == "stack cleared"
            cuda.captured_nodes += 1 + number
            cuda.allocated += 512 * number
            calls.end([OnDevice(results[number]), torch.ones(2)])
            cuda.captured_nodes += 1  # a kernel between them

    made = capture.record(0, run)
    memory = [((tensors[0].data_ptr(), 12),), ((tensors[1].data_ptr(), 36),)]
    assert [call.memory for call in made.calls] == memory
    assert [call.nodes for call in made.calls] == [range(1), range(2, 4)]
    given = [((results[0].data_ptr(), 20),), ((results[1].data_ptr(), 24),)]
    assert [call.results for call in made.calls] == given and [call.allocated for call in made.calls] == [0, 512]
    cuda.log.clear()
    capture.observer().begin([])
    capture.observer().end()
    assert not cuda.log and len(made.calls) == 2


def test_a_recording_that_draws_numbers_is_always_launched_by_torch(cuda: Torch) -> None:
    cuda.draws = 4
    made = CudaCapture().record(0, lambda: None)
    replay = made.bind([[AddressWord(0, 0)]], [64])
    cuda.log.clear()
    replay([128], 0)
    replay([256], 9)
    made.replay(0)
    assert cuda.generator.offset == 12
    written = ["bound [128] written", "torch launched on user", "bound [256] written", "torch launched on stream 9"]
    assert cuda.log == [*written, "torch launched on user"]


@pytest.mark.parametrize("draws", [0, 4])
def test_threads_that_replay_at_once_launch_what_they_wrote(
    cuda: Torch, monkeypatch: pytest.MonkeyPatch, draws: int
) -> None:
    """The first launch, which shows whether numbers are drawn, is torch's: nobody may write before it is done."""
    threads, turns = 6, 8
    written: list[int] = [0]  # the address that the graph holds
    launched: dict[int, list[int]] = {n: [] for n in range(threads)}
    me = threading.local()

    def bound(new: Sequence[int], stream: int, launches: bool) -> None:
        written[:] = new
        if launches:
            launched[me.number] += written
        time.sleep(0.001)  # as a native call lets other threads run

    def replayed(graph: Graph) -> None:
        time.sleep(0.02 if not any(launched.values()) else 0)  # the others come to wait meanwhile
        launched[me.number] += written
        cuda.generator.offset += draws

    monkeypatch.setattr(Native, "bind", lambda self, arguments, addresses: bound)
    monkeypatch.setattr(Graph, "replay", replayed)
    replay = CudaCapture().record(0, lambda: None).bind([[AddressWord(0, 0)]], [64])
    together = threading.Barrier(threads)

    def work(number: int) -> None:
        me.number = number
        together.wait()
        for turn in range(turns):
            replay([1000 * number + turn], 0)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert launched == {n: [1000 * n + turn for turn in range(turns)] for n in range(threads)}


@pytest.mark.parametrize("breaks", [True, False])
def test_an_error_comes_out_and_the_next_recording_works(cuda: Torch, breaks: bool) -> None:
    def run() -> None:
        cuda.broken = breaks
        raise KeyError("mine")

    pool, capture = CudaPool(0), CudaCapture()
    with pytest.raises(KeyError, match="mine"):
        capture.record(0, run, pool)
    gc.collect()
    assert not cuda.capturing and not cuda.generator.is_captured
    assert not cuda.allocator.underway and cuda.allocator.users == 1
    assert ("began again" in cuda.log) is breaks
    capture.record(0, lambda: None, pool)


def test_a_capture_that_was_broken_inside_is_an_error(cuda: Torch) -> None:
    pool = CudaPool(0)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        CudaCapture().record(0, lambda: setattr(cuda, "broken", True), pool)
    assert not cuda.allocator.underway and not cuda.generator.is_captured


def test_recordings_do_not_nest_and_pools_are_of_their_device(cuda: Torch) -> None:
    capture = CudaCapture()
    with pytest.raises(TurretError, match="captured already"):
        capture.record(0, lambda: capture.record(0, lambda: None))
    with pytest.raises(TurretError, match=r"no pool of cuda:1; make one with pool\(1\)"):
        capture.record(1, lambda: None, CudaPool(0))
    assert not capture.is_recording(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_error_says_what_is_missing() -> None:
    with pytest.raises(
        TurretError, match=r"torch .* (has no torch\._C\._graph_pool_handle|finds no CUDA device), which recorded"
    ):
        CudaCapture().pool(0)
