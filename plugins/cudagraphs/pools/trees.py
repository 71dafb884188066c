"""Recordings whose outputs stay in a shared pool: trees of nodes, the path of the calls under way, generations."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch.multiprocessing.reductions import StorageWeakRef

from turret.api import cudagraphs
from turret.api.cudagraphs import PoolReport, step_marks
from turret.frames import frame_hook
from turret.hooks.graph_capture import MemoryPool
from turret.plugins.cudagraphs.pools.graphed import Graphed
from turret.plugins.cudagraphs.pools.path import Given, Path
from turret.plugins.cudagraphs.pools.tree_text import paths, tree_text
from turret.plugins.cudagraphs.recording.making import Making, make_node, pool_blocks
from turret.plugins.cudagraphs.recording.node import Block, Node, Spot, mismatch
from turret.plugins.cudagraphs.recording.outputs import fresh_outputs, outputs_on
from turret.plugins.cudagraphs.work import Key, RecordingDevice, Shapes
from turret.storage.fork_safety import Lock

Nodes = WeakKeyDictionary[Graphed, dict[Key, list[Node]]]


class GraphTrees:
    """All that is recorded on one stream of a device with outputs in the pool.

    A *generation* is what runs between two points where outputs may be overwritten.  A new one begins with a call of a
    compiled function from outside of any, unless a forward still waits for its backward.  Where the user marks steps,
    one begins with each mark and at no other point.  ``invocations()`` counts calls from outside,
    ``marks()`` is another number after each mark.
    """

    outputs = "pool"

    def __init__(
        self,
        recording_device: RecordingDevice,
        stream: int,
        invocations: Callable[[], int] = frame_hook.invocations,
        marks: Callable[[], int] = step_marks,
    ) -> None:
        self.recording_device, self.stream, self.lock = recording_device, stream, Lock()
        self._invocations, self._marks = invocations, marks
        self._roots: Nodes = WeakKeyDictionary()
        self._numbers = itertools.count()
        self._pool: MemoryPool | None = None
        self._empty: Any = None
        self._path = Path()
        self._warming_up = False
        self._backward_pending = False
        self._seen = ("calls", 0)
        cudagraphs.pools.add(self)
        frame_hook.captures.add(self)

    def forget(self) -> None:
        """Drop all recordings; memory that somebody holds stays with them."""
        with self.lock:
            for function in {*self._functions(list(self._roots.items()))}:
                function.forget()
            self._roots = WeakKeyDictionary()
            self._path, self._pool = Path(), None
            self._warming_up = self._backward_pending = False

    def _functions(self, nodes: Sequence[tuple[Graphed, dict[Key, list[Node]]]]) -> list[Graphed]:
        found = []
        for function, by_key in nodes:
            found.append(function)
            for same in by_key.values():
                for node in same:
                    found += self._functions(list(node.children.items()))
        return found

    def run(self, function: Graphed, args: list) -> list:
        """One call: replayed where a recording fits behind those on the path, else run to warm up, or recorded."""
        with self.lock:
            self._turn()
            try:
                return self._run(function, function.work.key(args), args)
            finally:
                if function.work.role != "inference":
                    self._backward_pending = function.work.role == "forward"

    def _turn(self) -> None:
        """Begin a new generation, or a new path, where that is possible."""
        marks = self._marks()
        seen = ("marks", marks) if marks else ("calls", self._invocations())
        path = self._path
        if path.calls:
            if seen != self._seen and (marks or not self._backward_pending):
                assert self._pool is not None  # something ran
                path.invalidate(self._pool)
                self._begin()
            elif not path.any_lives():
                self._begin()
        self._seen = seen

    def _begin(self) -> None:
        self._path, self._warming_up = Path(), False

    def _run(self, function: Graphed, key: Key, args: list) -> list:
        if reason := function.reason_against(key):
            return function.run_plainly(args, reason)
        if self._warming_up or not function.is_warm(key, self.stream):
            return self._warm_up(function, key, args)
        nodes = self._behind(function, key)
        for node in nodes:
            results = self._replay(function, node, args)
            if results is not None:
                return results
        if reason := function.too_often(nodes):
            return function.run_plainly(args, reason)
        return self._record(function, key, nodes, args)

    def _behind(self, function: Graphed, key: Key) -> list[Node]:
        """The nodes of a function behind the last call of the path."""
        calls = self._path.calls
        if calls:
            last = calls[-1].node
            assert last is not None  # behind a warm-up nothing is replayed
            return last.of(function, key)
        return self._roots.setdefault(function, {}).setdefault(key, [])

    def _replay(self, function: Graphed, node: Node, args: list) -> list | None:
        """Replay a node, unless it would overwrite what lives or does not fit the inputs."""
        path = self._path
        if not path.are_dead(node.dead_numbers):
            return None
        try:
            results = node.replay(args, self.stream)
        except BaseException:
            if node.tally.broken:
                self._behind(function, node.key).remove(node)
                function.drop(node)
            raise
        if results is not None:
            held = _held(node.shapes, results) if node.blocks else []
            path.add(Given(node.name, node, node.blocks, held, node.state, node.live_after))
        return results

    def _restored(self) -> tuple[MemoryPool, Any, tuple[int, ...]]:
        """The pool, and which of its blocks are in use now: a state, and those that died since."""
        if self._pool is None:
            self._pool = self.recording_device.capture.pool(self.recording_device.index)
            self._empty = self._pool.checkpoint()
        if not self._path.calls:
            return self._pool, self._empty, ()
        return self._pool, self._path.calls[-1].state, tuple(self._path.dead_since())

    def _warm_up(self, function: Graphed, key: Key, args: list) -> list:
        """Run a call as it is, in the pool, so that memory is taken and given back as it will be."""
        function.prepare(key, self.stream, gives_fresh(function))
        if key in function.refused:
            return function.run_plainly(args, function.refused[key])
        pool, state, dead = self._restored()
        pool.restore(state, dead)
        work, path = function.work, self._path
        live, shapes, inputs = path.live() if path.calls else frozenset(), work.shapes(key), list(args)
        args.clear()
        blocks: tuple[Block, ...] = ()
        if gives_fresh(function):
            buffers = [self.recording_device.empty(b.shape, b.stride, b.dtype) for b in shapes.buffers]
            with _owned_by_nobody_later(), pool.allocating():
                work.run_into(list(inputs), buffers)
            state, results = pool.checkpoint(), fresh_outputs(shapes, buffers, inputs)
        else:
            with _owned_by_nobody_later(), pool.allocating():
                made = work.run(list(inputs))
            blocks, shapes = pool_blocks(made, shapes, inputs)
            state = pool.checkpoint()
            del made
            results = outputs_on(self.recording_device.device, shapes, blocks, inputs, pool)
        function.warmed_up(key, self.stream)
        held = _held(shapes, results) if blocks else []
        own = frozenset(Spot(len(path.calls), n) for n in range(len(blocks)))
        path.add(Given(function.name, None, blocks, held, state, live | own))
        self._warming_up = True
        return results

    def _record(self, function: Graphed, key: Key, nodes: list[Node], args: list) -> list:
        why = self._why_again(nodes, args)
        try:
            node = self._made(function, key, nodes, args, why)
        except Exception as error:
            return function.run_instead(key, error, args)
        function.note(node, why)
        return function.first_replay(node, nodes, args, self._replay)

    def _made(self, function: Graphed, key: Key, nodes: Sequence[Node], args: list, why: str) -> Node:
        path = self._path
        pool, state, dead = self._restored()
        expects_dead, live = path.dead(), path.live()
        making = Making(
            self.recording_device,
            pool,
            state,
            dead,
            pooled=path.pooled(args),
            moved=function.statics_that_moved(nodes, args),
            number=next(self._numbers),
            why=why,
        )
        node = make_node(making, function.work, function.name, key, args, not gives_fresh(function))
        own = frozenset(Spot(len(path.calls), n) for n in range(len(node.blocks)))
        node.expects_dead, node.live_after = expects_dead, live | own
        node.dead_numbers = path.numbers(expects_dead)
        return node

    def _why_again(self, nodes: Sequence[Node], args: list) -> str:
        if not nodes:
            return ""
        alive = [spot for spot in nodes[0].expects_dead if self._path.lives(spot)]
        if alive:
            names = sorted({self._path.calls[spot.depth].name for spot in alive})
            return f"outputs of {', '.join(names)} live that did not when it was recorded"
        return mismatch(nodes[0], args)

    def reported(self) -> PoolReport:
        roots = [node for nodes in self._roots.values() for same in nodes.values() for node in same]
        text, count = tree_text(self.recording_device.index, roots)
        reserved = 0 if self._pool is None else self._pool.reserved_bytes
        device = str(self.recording_device.device)
        return PoolReport(device, self.stream, self.outputs, reserved, count, text, paths(roots))


def gives_fresh(function: Graphed) -> bool:
    """Whether a function's outputs are taken anew although others' stay in the pool: gradients outlive every step."""
    return function.work.role == "backward"


@contextlib.contextmanager
def _owned_by_nobody_later() -> Iterator[None]:
    """A context whose exceptions keep no local variables: a pool is not restored while tensors own its memory."""
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise


def _held(shapes: Shapes, results: Sequence[Any]) -> list[StorageWeakRef]:
    """A weak reference to each block's storage, of which outputs are made."""
    storages: dict[int, StorageWeakRef] = {}
    for result, output in zip(shapes.results, results, strict=True):
        if result.kind == "buffer" and result.source not in storages:
            storages[result.source] = StorageWeakRef(output.untyped_storage())
    return [storages[n] for n in range(len(storages))]
