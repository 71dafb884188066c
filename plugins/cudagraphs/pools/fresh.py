"""Recordings that give out fresh memory: nothing in the pool outlives a call, so that any order of calls is right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from turret.api import cudagraphs
from turret.api.cudagraphs import PoolReport
from turret.frames import frame_hook
from turret.hooks.graph_capture import MemoryPool
from turret.plugins.cudagraphs.pools.graphed import Graphed
from turret.plugins.cudagraphs.pools.tree_text import paths, tree_text
from turret.plugins.cudagraphs.recording.any_size import ANY_SIZE, make_any_size_node
from turret.plugins.cudagraphs.recording.making import Making, make_node
from turret.plugins.cudagraphs.recording.node import Node, mismatch
from turret.plugins.cudagraphs.recording.recorder import NotRecordable
from turret.plugins.cudagraphs.work import Key, RecordingDevice
from turret.storage.fork_safety import Lock


class FreshGraphs:
    """What is recorded on one stream of a device, in one pool, with outputs that are taken anew in each replay."""

    outputs = "fresh"
    pools_outputs = False
    copies = ""
    """Why inputs are copied whatever their words say; empty: only where they have to be."""

    def __init__(self, recording_device: RecordingDevice, stream: int) -> None:
        self.recording_device, self.stream, self.lock = recording_device, stream, Lock()
        self._pool: MemoryPool | None = None
        self._state: Any = None
        self._nodes: WeakKeyDictionary[Graphed, dict[Key, list[Node]]] = WeakKeyDictionary()
        self._numbers = itertools.count()
        cudagraphs.pools.add(self)
        frame_hook.captures.add(self)

    def forget(self) -> None:
        """Drop all recordings."""
        with self.lock:
            for function in list(self._nodes):
                function.forget()
            self._nodes.clear()
            self._pool = None

    def run(self, function: Graphed, args: list) -> list:
        """One call: replayed where a recording fits."""
        key = function.work.key(args)
        with self.lock:
            if function.is_any_size(key):
                served = self._of_any_size(function, key, args)
                if served is not None:
                    return served
            nodes = function.kept.get(self.stream)
            if nodes is not None:
                for node in nodes.get(key, ()):
                    results = self._replay(function, node, args)
                    if results is not None:
                        return results
            return self._without_a_replay(function, key, args)

    def _of_any_size(self, function: Graphed, key: Key, args: list) -> list | None:
        """One call by a recording of any size; None where it has to go on otherwise.

        Such a recording serves all sizes for which the same kernels are launched.  Where they are others, as those for
        sizes that are multiples of 16 may be, there is one more.
        """
        nodes = function.kept.get(self.stream, {}).get(ANY_SIZE, [])
        try:
            for node in function.in_turn(nodes, self.stream, key):
                results = self._replay(function, node, args)
                if results is not None:
                    function.fits(node, self.stream, key)
                    return results
        except NotRecordable:
            return None  # no kernels take these tensors as they lie
        if not nodes and not function.is_warm(ANY_SIZE, self.stream):
            return self._warm_up(function, ANY_SIZE, args)
        return self._record_for_any_size(function, key, args) if function.takes_any_size(nodes) else None

    def _record_for_any_size(self, function: Graphed, key: Key, args: list) -> list | None:
        """Record a call for all sizes that have its kernels, and replay it."""
        pool, _ = self._memory()
        kept = function.kept[self.stream] = self._nodes.setdefault(function, {})
        nodes = kept.setdefault(ANY_SIZE, [])
        try:
            node = make_any_size_node(
                self.recording_device, pool, function.work, function.name, next(self._numbers), args
            )
            results = node.replay(args, self.stream)
        except Exception as error:
            function.not_any_size(f"{type(error).__name__}: {error}".removeprefix("NotRecordable: "), nodes)
            return None
        if results is None:
            function.not_any_size("the device does not write its launches anew", nodes)
            return None
        nodes.append(node)
        function.fits(node, self.stream, key)
        function.note(node, "its sizes have other kernels" if len(nodes) > 1 else "")
        return results

    def _replay(self, function: Graphed, node: Node, args: list) -> list | None:
        try:
            return node.replay(args, self.stream)
        except BaseException:
            if node.tally.broken:
                self._nodes[function][node.key].remove(node)
                function.drop(node)
            raise

    def _without_a_replay(self, function: Graphed, key: Key, args: list) -> list:
        """The first calls of some sizes run as they are, later ones are recorded."""
        if reason := function.reason_against(key):
            return function.run_plainly(args, reason)
        if not function.is_warm(key, self.stream):
            return self._warm_up(function, key, args)
        kept = function.kept[self.stream] = self._nodes.setdefault(function, {})
        nodes = kept.setdefault(key, [])
        if reason := function.too_often(nodes):
            return function.run_plainly(args, reason)
        try:
            node = self._record(function, key, nodes, args)
        except Exception as error:
            results = function.run_instead(key, error, args)
            self._drop_empty_pool()
            return results
        return function.first_replay(node, nodes, args, self._replay)

    def _warm_up(self, function: Graphed, key: Key, args: list) -> list:
        """Run a call as it is."""
        function.prepare(key, self.stream, not self.pools_outputs)
        results = function.plain(args)
        function.warmed_up(key, self.stream)
        return results

    def _record(self, function: Graphed, key: Key, nodes: Sequence[Node], args: list) -> Node:
        pool, state = self._memory()
        why = mismatch(nodes[0], args) if nodes else ""
        moved = function.statics_that_moved(nodes, args)
        making = Making(
            self.recording_device,
            pool,
            state,
            moved=moved,
            copies=self.copies,
            copied=function.copied,
            number=next(self._numbers),
            why=why,
        )
        node = make_node(making, function.work, function.name, key, args, self.pools_outputs)
        if node.recorded.is_typical:
            function.copied |= node.recorded.copied
        function.check_copies(node)
        function.note(node, why)
        return node

    def _drop_empty_pool(self) -> None:
        """A pool that no recording lies in keeps nothing reserved."""
        if not any(nodes for by_key in self._nodes.values() for nodes in by_key.values()):
            self._pool = self._state = None

    def _memory(self) -> tuple[MemoryPool, Any]:
        """The pool to record in, and its state with nothing in use."""
        if self._pool is None:
            self._pool = self.recording_device.capture.pool(self.recording_device.index)
            self._state = self._pool.checkpoint()
        return self._pool, self._state

    def reserved_bytes(self) -> int:
        return 0 if self._pool is None else self._pool.reserved_bytes

    def reported(self) -> PoolReport:
        roots = [node for nodes in self._nodes.values() for same in nodes.values() for node in same]
        text, count = tree_text(self.recording_device.index, roots)
        reserved = self.reserved_bytes()
        device = str(self.recording_device.device)
        return PoolReport(device, self.stream, self.outputs, reserved, count, text, paths(roots))


class LegacyGraphs(FreshGraphs):
    """Recordings as before trees: a pool each, inputs copied to it, outputs that the next replay overwrites."""

    outputs = "legacy"
    pools_outputs = True
    copies = "cudagraph_trees is off: inputs have memory of their own"

    def __init__(self, recording_device: RecordingDevice, stream: int) -> None:
        super().__init__(recording_device, stream)
        self._pools: list[MemoryPool] = []

    def _memory(self) -> tuple[MemoryPool, Any]:
        pool = self.recording_device.capture.pool(self.recording_device.index)
        self._pools.append(pool)
        return pool, pool.checkpoint()

    def forget(self) -> None:
        super().forget()
        self._pools.clear()

    def reserved_bytes(self) -> int:
        return sum(pool.reserved_bytes for pool in self._pools)
