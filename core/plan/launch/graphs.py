"""Captured CUDA graphs, read and patched through the driver: nodes with their arguments, replays over other memory."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turret.errors import TurretError
from turret.hooks.graph_capture import AddressWord, Patch, RecordedNode, WorkKind
from turret.plan.launch.driver_library import GRAPHS, LAUNCHER, message
from turret.plan.launch.enums import NodeKind
from turret.storage.artifact_cache import Store

_WORK: dict[NodeKind, WorkKind] = {
    NodeKind.KERNEL: "kernel",
    NodeKind.COPY: "copy",
    NodeKind.CLEAR: "clear",
    NodeKind.OTHER: "other",
}


def make_stream(device: int, library: ctypes.CDLL | None = None) -> int:
    """The handle of a stream that nobody else has; ``RuntimeError`` where the driver refuses."""
    library = GRAPHS.load() if library is None else library
    stream: int | None = library.turret_make_stream(device)
    if stream is None:
        raise RuntimeError(message(library))
    return stream


def begin_capture(device: int, stream: int, library: ctypes.CDLL | None = None) -> None:
    """Capture what this thread queues on a stream, by its handle; ``RuntimeError`` where the driver refuses."""
    library = GRAPHS.load() if library is None else library
    if library.turret_begin_capture(device, stream):
        raise RuntimeError(message(library))


def captured_nodes(device: int, stream: int, library: ctypes.CDLL | None = None) -> int:
    """How many nodes the capture under way on a stream has; ``RuntimeError`` where there is none."""
    library = GRAPHS.load() if library is None else library
    count: int = library.turret_captured_nodes(device, stream)
    if count < 0:
        raise RuntimeError(message(library))
    return count


def clear_stack(library: ctypes.CDLL | None = None) -> None:
    """Write zeros where the next calls of this thread have their local variables."""
    library = GRAPHS.load() if library is None else library
    library.turret_clear_stack()


def host_memory() -> list[range]:
    """The addresses of memory that this process can read, those that its devices share with it apart."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            span, rights, _, _, _, *name = line.split(maxsplit=5)
            if rights.startswith("r") and not (name and name[0].startswith("/dev/")):
                begin, _, end = span.partition("-")
                found.append(range(int(begin, 16), int(end, 16)))
    return found


class NativeGraph:
    """A captured graph, by its handle, on one device; it has to outlive this.

    ``instantiate`` gives the handle of its executable; it is called before the first patch, binding or replay.

    Raises ``CodegenError`` where there is no library or no driver for it, ``TurretError`` where the driver does not
    tell what the graph consists of.
    """

    def __init__(
        self,
        device: int,
        graph: int,
        instantiate: Callable[[], int],
        library: ctypes.CDLL | None = None,
        store: Store | None = None,
    ) -> None:
        self.library = GRAPHS.load(store) if library is None else library
        handle = self.library.turret_graph(device, graph)
        if not handle:
            raise TurretError(f"a captured graph cannot be read: {message(self.library)}")
        self.handle = handle
        self._instantiate: Callable[[], int] | None = instantiate
        self._recorded: tuple[RecordedNode, ...] | None = None
        weakref.finalize(self, self.library.turret_graph_free, handle)

    def instantiate(self) -> None:
        """Make the executable now, unless that was done."""
        if self._instantiate is not None:
            self.library.turret_graph_executable(self.handle, self._instantiate())
            self._instantiate = self._recorded = None

    @property
    def nodes(self) -> tuple[RecordedNode, ...]:
        """Its nodes, in an order that their dependences allow, with the arguments of the next replay."""
        if self._instantiate is None:
            return tuple(map(self._node, range(self.length)))
        if self._recorded is None:  # nothing is written before there is an executable
            self._recorded = tuple(map(self._node, range(self.length)))
        return self._recorded

    @property
    def length(self) -> int:
        """How many nodes it has; those that work on no memory are left out."""
        count: int = self.library.turret_graph_length(self.handle)
        return count

    def _node(self, number: int) -> RecordedNode:
        library, handle = self.library, self.handle
        count = library.turret_node_bytes(handle, number)
        arguments = ctypes.string_at(library.turret_node_arguments(handle, number), count) if count else b""
        kind, name = library.turret_node_kind(handle, number), library.turret_node_name(handle, number)
        return RecordedNode(_WORK[NodeKind(kind)], name.decode(errors="replace"), arguments)

    def launch_words(self, node: int) -> list[int]:
        """How a kernel node is launched by itself, without its arguments, as words for ``turret_sequence``."""
        room = 64
        while True:
            words = (ctypes.c_int64 * room)()
            count = self.library.turret_node_launch(self.handle, node, words, room)
            if count <= room:
                return words[:count]
            room = count

    def patch(self, patches: Sequence[Patch]) -> None:
        """Write addresses, for all later replays; nothing is written where one of them has no place."""
        self.instantiate()
        words = [AddressWord(p.node, p.offset) for p in patches]
        addresses = _addresses([p.address for p in patches])
        self._check(self.library.turret_graph_patch(self.handle, _triples(words), addresses, len(words)))

    def replay(self, stream: int) -> None:
        """Queue it on a stream."""
        self.instantiate()
        self._check(self.library.turret_graph_replay(self.handle, None, None, stream, True))

    def bind(
        self, arguments: Sequence[Sequence[AddressWord]], addresses: Sequence[int]
    ) -> Callable[[Sequence[int], int, bool], None]:
        """``replay(addresses, stream, launches)``: write those that changed, and queue it unless somebody else will.

        One native call, which holds no lock of Python's; calls of several threads follow one another.
        """
        if len(arguments) != len(addresses):
            raise TurretError(f"{len(addresses)} addresses for {len(arguments)} arguments of a recorded graph")
        self.instantiate()
        library, counts = self.library, [len(words) for words in arguments]
        triples = _triples([word for words in arguments for word in words])
        length = (ctypes.c_int64 * len(counts))(*counts)
        binding = _Binding(
            self, library.turret_binding(self.handle, triples, length, _addresses(addresses), len(counts))
        )
        # A third of a microsecond for ten, where an array of ctypes takes three.
        run, packed, graph = library.turret_graph_replay, struct.Struct(f"{len(counts)}Q").pack, self.handle

        def replay(addresses: Sequence[int], stream: int, launches: bool = True) -> None:
            if len(addresses) != len(counts):
                raise TurretError(f"a replay takes {len(counts)} addresses, and was given {len(addresses)}")
            if run(graph, binding.handle, packed(*addresses), stream, launches):
                raise RuntimeError(message(library))

        return replay

    def replay_as(self, launch: Callable[[], object], stream: int, launcher: ctypes.CDLL | None = None) -> str:
        """Queue it with the grids and arguments of what ``launch`` launches and copies by the ``launcher`` here.

        Nothing else is queued.  Gives why those launches are not the recorded ones, and then queues nothing.
        """
        self.instantiate()
        library, handle = self.library, self.handle
        launcher = LAUNCHER.load() if launcher is None else launcher
        library.turret_rewrite_begin(handle)
        takers = (library.turret_rewrite_kernel, library.turret_rewrite_clear, library.turret_rewrite_copy)
        launcher.turret_redirect(*map(_address, takers), handle)
        try:
            launch()
        except Exception:
            if not library.turret_rewrite_refusal(handle):
                raise
        finally:
            launcher.turret_redirect(None, None, None, None)
        fits = not library.turret_rewrite_refusal(handle)
        failed = fits and library.turret_rewrite_end(handle, stream)
        refusal: bytes = library.turret_rewrite_refusal(handle)
        if failed and not refusal:
            raise RuntimeError(message(library))
        return refusal.decode(errors="replace")

    @property
    def rewritten(self) -> int:
        """Nodes that ``replay_as`` has written anew so far, in all replays together."""
        count: int = self.library.turret_rewritten(self.handle)
        return count

    def _check(self, failed: int) -> None:
        if failed:
            raise RuntimeError(message(self.library))


class _Binding:
    """Where the addresses of a graph lie, which it keeps alive."""

    __slots__ = ("__weakref__", "graph", "handle")

    def __init__(self, graph: NativeGraph, handle: int | None) -> None:
        if not handle:
            raise TurretError(message(graph.library))
        self.graph, self.handle = graph, handle
        weakref.finalize(self, graph.library.turret_binding_free, handle)


def _address(function: Any) -> int | None:
    """Where a native function lies."""
    return ctypes.cast(function, ctypes.c_void_p).value


def _triples(words: Sequence[AddressWord]) -> ctypes.Array[ctypes.c_int64]:
    flat = [number for word in words for number in (word.node, word.offset, word.delta)]
    return (ctypes.c_int64 * len(flat))(*flat)


def _addresses(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(addresses))(*addresses)
