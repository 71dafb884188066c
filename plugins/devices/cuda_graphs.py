"""CUDA's graph capture: torch's captures and pools, nodes read and patched through the driver.

A recording is captured by torch on a side stream of its pool, in thread-local mode, so that other threads work on.
Workspaces of cuBLAS are given back before and after, so that those which a graph uses lie in its pool; a capture that
failed is ended in the allocator and in the generators, too.  A replay is one launch through the driver; graphs that
draw random numbers are launched by torch, which moves its generators on.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import gc
import operator
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from turret.errors import TurretError
from turret.hooks.devices import Segment
from turret.hooks.graph_capture import (
    AddressWord,
    GraphCapture,
    HeldBack,
    HeldBlock,
    KnownCall,
    MemoryPool,
    Patch,
    RecordedCall,
    RecordedNode,
    Recording,
    Replay,
    places_of,
)
from turret.plan.launch.graphs import (
    NativeGraph,
    begin_capture,
    captured_nodes,
    clear_stack,
    host_memory,
    make_stream,
)
from turret.plan.launch.lazy_kernels import compile_missing
from turret.plan.launch.sequences import KnownFill, KnownLaunch, make_sequence
from turret.storage.fork_safety import Lock
from turret.torch_compat.native import cuda_function

PoolId = tuple[int, int]


def _torch(name: str) -> Any:
    """A function of torch's CUDA build."""
    found = cuda_function(name)
    if found is None or not torch.cuda.is_available():
        why = f"has no torch._C.{name}" if found is None else "finds no CUDA device"
        raise TurretError(
            f"torch {torch.__version__} {why}, which recorded graphs need; use a CUDA build of torch 2.11 or later "
            "where there is a GPU, or set cudagraphs=False"
        )
    return found


@attrs.frozen
class CudaCheckpoint:
    """The allocator's own state of a pool, and the blocks in use: where each begins, with its bytes."""

    state: Any
    sizes: dict[int, int]

    @property
    def blocks(self) -> frozenset[int]:
        """Where the blocks in use begin."""
        return frozenset(self.sizes)


class _Streams:
    """Streams that torch hands to nobody: those of ``torch.cuda.Stream`` are few, and given out again and again.

    What another thread queues on the stream of a capture becomes part of it, or breaks it.
    """

    def __init__(self) -> None:
        self._unused: dict[int, list[torch.cuda.Stream]] = {}

    def take(self, index: int, user: object) -> torch.cuda.Stream:
        """A stream of a device, which ``user`` has as long as it lives; torch's allocator may never forget it."""
        unused = self._unused.setdefault(index, [])
        try:
            stream = unused.pop()
        except IndexError:
            stream = torch.cuda.ExternalStream(make_stream(index), device=index)
        weakref.finalize(user, unused.append, stream).atexit = False
        return stream


_streams = _Streams()


class CudaPool(MemoryPool):
    """A private pool of torch's caching allocator, and the side stream on which its memory is handed out.

    A block that no tensor owns, because a checkpoint brought it back, is freed by the next ``restore``.
    """

    granule = 512

    def __init__(self, index: int) -> None:
        self.index, self.id = index, _torch("_graph_pool_handle")()
        self.stream = _streams.take(index, self)
        self._unowned: frozenset[int] = frozenset()
        # Torch's allocators count the graphs of a pool, and its host allocator never takes one again that had none.
        self._keeper = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.device(index), torch.cuda.stream(self.stream), _empty_graphs_allowed():
            self._keeper.capture_begin(pool=self.id, capture_error_mode="thread_local")
            self._keeper.capture_end()

    @contextlib.contextmanager
    def on_stream(self, library_calls: bool = True) -> Iterator[None]:
        """A context in which the pool's stream is the current one, in order with the one before and afterwards."""
        workspaces = _workspaces_given_back() if library_calls else contextlib.nullcontext()
        before = torch.cuda.current_stream(self.index)
        self.stream.wait_stream(before)
        try:
            with torch.cuda.stream(self.stream), workspaces:
                yield
        finally:
            before.wait_stream(self.stream)

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        with self.on_stream():
            _torch("_cuda_beginAllocateCurrentThreadToPool")(self.index, self.id)
            try:
                yield
            finally:
                _torch("_cuda_endAllocateToPool")(self.index, self.id)
                _torch("_cuda_releasePool")(self.index, self.id)

    def checkpoint(self) -> CudaCheckpoint:
        return CudaCheckpoint(_torch("_cuda_getCheckpointState")(self.index, self.id), self._sizes())

    def bytes_in_use(self, checkpoint: CudaCheckpoint) -> int:
        return sum(checkpoint.sizes.values())

    def restore(self, checkpoint: CudaCheckpoint, dead: Sequence[int]) -> None:
        gone = frozenset(dead)
        if not gone <= checkpoint.blocks:
            unknown = ", ".join(map(hex, sorted(gone - checkpoint.blocks)))
            raise TurretError(f"no block of the checkpoint begins at the dead addresses {unknown}")
        owned = frozenset(self._sizes()) - self._unowned
        if owned:
            addresses = ", ".join(map(hex, sorted(owned)))
            raise TurretError(f"a pool cannot be restored while tensors allocated from it live: at {addresses}")
        delete = _torch("_cuda_cudaCachingAllocator_raw_delete")
        for address in self._unowned:
            delete(address)
        self._unowned = frozenset()
        _torch("_cuda_setCheckpointPoolState")(self.index, checkpoint.state, [], [])
        for address in gone:
            delete(address)
        self._unowned = checkpoint.blocks - gone

    def invalidate(self, storage: torch.UntypedStorage, message: str) -> None:
        _torch("_set_storage_data_ptr_access_error_msg")(storage._cdata, message)

    def segments(self) -> list[range]:
        return [range(s["address"], s["address"] + s["total_size"]) for s in self._segments()]

    @property
    def reserved_bytes(self) -> int:
        return sum(segment["total_size"] for segment in self._segments())

    def _sizes(self) -> dict[int, int]:
        """The blocks in use."""
        found = {}
        for segment in self._segments():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    found[address] = block["size"]
                address += block["size"]
        return found

    def _segments(self) -> list[dict[str, Any]]:
        snapshot = _torch("_cuda_memorySnapshot")
        try:
            found = snapshot((*self.id, False))  # without traces
        except TypeError:  # of older versions, which take no third part
            found = snapshot(self.id)
        return [s for s in found["segments"] if s["device"] == self.index and tuple(s["segment_pool_id"]) == self.id]


@contextlib.contextmanager
def _empty_graphs_allowed() -> Iterator[None]:
    """Torch warns of a capture in which nothing was launched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _workspaces_given_back() -> Iterator[None]:
    """cuBLAS takes its workspaces anew within, and anew afterwards: none of a pool's is used outside of it.

    The handle of this thread is made first, which a capture must not do.
    """
    clear = _torch("_cuda_clearCublasWorkspaces")
    _torch("_cuda_getCurrentBlasHandle")()
    clear()
    try:
        yield
    finally:
        clear()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage may hold what must not be destroyed in the middle of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_start = operator.attrgetter("start")


@attrs.frozen
class _Fill:
    """What a node that fills memory was handed: ``count`` numbers of ``size`` bytes (``CUDA_MEMSET_NODE_PARAMS``)."""

    value: int
    size: int
    count: int

    @classmethod
    def of(cls, node: RecordedNode) -> _Fill:
        _, _, value_and_size, width, _ = node.words
        return cls(value_and_size & 0xFFFF_FFFF, value_and_size >> 32, width)


class CudaRecording(Recording):
    """A captured graph, its nodes by the driver; the pool keeps its memory as long as the graph is there."""

    def __init__(
        self, index: int, graph: torch.cuda.CUDAGraph, native: NativeGraph, calls: Sequence[RecordedCall]
    ) -> None:
        self._index, self._graph, self._native, self.calls = index, graph, native, calls
        self._lock = Lock()
        self._draws_numbers: bool | None = None  # not known before the first replay

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        return self._native.nodes

    def is_of_host(self, word: int) -> bool:
        place = bisect.bisect_right(self._host_memory, word, key=_start) - 1
        return place >= 0 and word in self._host_memory[place]

    @functools.cached_property
    def _host_memory(self) -> list[range]:
        return sorted(host_memory(), key=_start)

    def patch(self, patches: Sequence[Patch]) -> None:
        self._native.patch(patches)

    def replay(self, stream: int) -> None:
        if not self._by_torch(lambda: None, stream):
            self._native.replay(stream)

    def why_not_launched(self, nodes: range) -> str:
        for node in (self.nodes[n] for n in nodes):
            if node.kind not in ("kernel", "clear"):
                return f"{node.name} is no kernel"
            if node.kind == "clear" and _Fill.of(node).size not in (1, 4):
                return f"{node.name} fills memory with numbers of {_Fill.of(node).size} bytes"
        return ""

    def launches(self, call: KnownCall) -> Iterator[KnownLaunch | KnownFill]:
        """What a call launches."""
        for n in call.nodes:
            node, places = self.nodes[n], [(w.offset, w.entry, w.delta) for w in call.words if w.node == n]
            if node.kind == "kernel":
                yield KnownLaunch(self._native.launch_words(n), node.words, places)
                continue
            ((_, entry, delta),), fill = places, _Fill.of(node)
            yield KnownFill(entry, delta, fill.value, fill.size, fill.count)

    def bind(self, arguments: Sequence[Sequence[AddressWord]], addresses: Sequence[int]) -> Replay:
        run = self._native.bind(arguments, addresses)

        def replay(addresses: Sequence[int], stream: int) -> None:
            if self._is_native() or not self._by_torch(lambda: run(addresses, stream, False), stream):
                run(addresses, stream, True)

        return replay

    def _is_native(self) -> bool:
        """Whether it is known to draw no numbers, so that the driver alone launches it."""
        return self._draws_numbers is False

    def _by_torch(self, write: Callable[[], object], stream: int) -> bool:
        """Have torch launch it where it draws numbers, or may; ``write`` prepares it.  Whether that was done.

        Nothing else may write between the two.  A native replay holds no lock of Python's, so that none may begin
        before all that torch launches are done: who waited here looks again whether torch is still needed.
        """
        if self._is_native():
            return False
        with self._lock:
            if self._is_native():
                return False
            write()
            self._replay_by_torch(stream)
            return True

    def replay_as(self, launch: Callable[[], object], stream: int) -> str:
        with self._lock:
            return self._native.replay_as(launch, stream)

    def _replay_by_torch(self, stream: int) -> None:
        """Replay with generators moved on; the first time shows whether they move."""
        generator = torch.cuda.default_generators[self._index]
        before = generator.get_offset() if self._draws_numbers is None else 0
        self._native.instantiate()
        with _current_stream(self._index, stream):
            self._graph.replay()
        if self._draws_numbers is None:
            self._draws_numbers = generator.get_offset() != before


def _current_stream(index: int, stream: int) -> contextlib.AbstractContextManager[Any]:
    if _torch("_cuda_getCurrentRawStream")(index) == stream:
        return contextlib.nullcontext()
    wanted = torch.cuda.ExternalStream(stream, device=index) if stream else torch.cuda.default_stream(index)
    return torch.cuda.stream(wanted)


class CudaCalls(threading.local):
    """Notes the library calls of the recording that this thread makes, each with a clear stack."""

    def __init__(self) -> None:
        self._noted: list[RecordedCall] | None = None
        self._stream = (0, 0)
        self._begun: RecordedCall | None = None
        self._held_back: HeldBack = {}
        self._blocks: list[torch.Tensor] = []
        self._allocated = 0

    @contextlib.contextmanager
    def noting(self, index: int, stream: int, held_back: HeldBack) -> Iterator[list[RecordedCall]]:
        """Within it, calls on a stream of a device are captured, and listed."""
        noted = self._noted = []
        self._stream, self._held_back = (index, stream), held_back
        try:
            yield noted
        finally:
            self._noted = None
            self._blocks.clear()

    def begin(self, tensors: Sequence[torch.Tensor], stays: bool = False) -> None:
        if self._noted is None:
            return
        first = captured_nodes(*self._stream)
        self._begun = RecordedCall.of(range(first, first), _of_device(tensors), stays)
        self._hold_back(self._held_back.get(len(self._noted), ()))
        self._allocated = _bytes_allocated(self._stream[0])
        clear_stack()

    def _hold_back(self, blocks: Sequence[HeldBlock]) -> None:
        taken = [(_block(self._stream[0], block.nbytes), block) for block in blocks]
        self._blocks = [memory for memory, block in taken if not block.is_hole]

    def end(self, results: Sequence[torch.Tensor] = ()) -> None:
        if self._noted is not None and self._begun is not None:
            nodes = range(self._begun.nodes.start, captured_nodes(*self._stream))
            allocated = _bytes_allocated(self._stream[0]) - self._allocated
            given = places_of(_of_device(results))
            self._noted.append(attrs.evolve(self._begun, nodes=nodes, results=given, allocated=allocated))
            self._blocks.clear()


def _of_device(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.device.type == "cuda"]


def _block(index: int, nbytes: int) -> torch.Tensor:
    """Memory of a device, as much of it."""
    return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", index))


def _bytes_allocated(index: int) -> int:
    """Bytes of all blocks that were ever taken from the allocator of a device, those of pools among them."""
    total: int = torch.cuda.memory_stats_as_nested_dict(index)["allocated_bytes"]["all"]["allocated"]
    return total


class CudaCapture(GraphCapture):
    """Recording by torch's stream captures."""

    def __init__(self) -> None:
        self._calls = CudaCalls()

    def pool(self, index: int) -> CudaPool:
        return CudaPool(index)

    def is_recording(self, index: int) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def observer(self) -> CudaCalls:
        return self._calls

    def sequence(
        self,
        index: int,
        parts: Sequence[Segment | KnownCall],
        entries: int,
        aligned: Sequence[int] = (),
        stored: Sequence[int] = (),
    ) -> Segment:
        given: list[int | KnownLaunch | KnownFill] = []
        for part in parts:
            if isinstance(part, Segment):
                given += part.leading
            else:
                assert isinstance(part.recording, CudaRecording)
                given += part.recording.launches(part)
        segments = [part for part in parts if isinstance(part, Segment)]  # a recording would keep its pool
        made = make_sequence(index, given, entries, aligned, stored, segments)
        recover = functools.partial(made.recover, names="library calls and the kernels beside them")
        return Segment(made.run, recover, (made.handle,), compile_missing)

    def record(
        self,
        index: int,
        run: Callable[[], Any],
        pool: MemoryPool | None = None,
        *,
        library_calls: bool = True,
        held_back: HeldBack | None = None,
    ) -> Recording:
        if self.is_recording(index):
            raise TurretError("the current stream is captured already; one recording cannot begin inside of another")
        if pool is None:
            pool = self.pool(index)
        if not isinstance(pool, CudaPool) or pool.index != index:
            raise TurretError(f"{pool} is no pool of cuda:{index}; make one with pool({index})")
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        noting = self._calls.noting(index, pool.stream.cuda_stream, held_back or {})
        counts: list[int] = []

        def counted() -> None:
            run()
            with contextlib.suppress(RuntimeError):  # of a broken capture its end says more
                counts.append(captured_nodes(index, pool.stream.cuda_stream))

        with torch.cuda.device(index), pool.on_stream(library_calls), _no_collection(), noting as calls:
            _capture(graph, counted, pool)
        native = NativeGraph(index, graph.raw_cuda_graph(), lambda: _executable(graph))
        # Numbers of nodes are those that a capture counts where none of them was left out.
        return CudaRecording(index, graph, native, calls if counts == [native.length] else ())


def _executable(graph: torch.cuda.CUDAGraph) -> int:
    """Instantiated when it is first needed: recordings that are compared with others alone are never run."""
    graph.instantiate()
    return graph.raw_cuda_graph_exec()


def _capture(graph: torch.cuda.CUDAGraph, run: Callable[[], Any], pool: CudaPool) -> None:
    graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
    try:
        run()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # what came out of ``run`` says more
            _end(graph, pool)
        raise
    _end(graph, pool)


def _end(graph: torch.cuda.CUDAGraph, pool: CudaPool) -> None:
    """End a capture; where it was broken, torch lets allocators and generators go on as if it were under way.

    It tells them only after the driver ended the capture without an error, which it does with one of nothing.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        begin_capture(pool.index, pool.stream.cuda_stream)
        with _empty_graphs_allowed():
            graph.capture_end()
        raise
