"""Order a graph's calls for a low peak of memory; the original order stays where nothing beats it.

Two further orders are tried, each linear in the size of the graph: calls as late as their readers allow, and
the original order with every call that frees at least what it takes pulled forward.  Calls with effects, random draws
and writes to inputs keep their order among one another and against the readers of what they write.
"""

from __future__ import annotations

import heapq

import torch
from torch import fx

from turret.graph.op_traits import is_effectful, is_random_call, output_nodes, storage_root, tensor_bytes
from turret.hooks.context import CompileContext
from turret.torch_compat.operators.ops import OpOverload


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Reorder calls in place; returns True when the order changed."""
    order = MemoryOrder(module.graph)
    best = min((order.original, order.late(), order.greedy()), key=order.peak)
    if best is order.original:
        return False
    _apply(module.graph, best)
    return True


def peak_bytes(graph: fx.Graph) -> int:
    """Most bytes alive at once, of what the graph itself allocates, in its present order."""
    order = MemoryOrder(graph)
    return order.peak(order.original)


class MemoryOrder:
    """A graph's calls with their dependencies and the bytes that each takes and frees."""

    def __init__(self, graph: fx.Graph) -> None:
        self.original = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        self._position = {node: i for i, node in enumerate(self.original)}
        self._root = {node: storage_root(node) for node in graph.nodes if node.op != "output"}
        self._bytes = {node: self._allocated(node) for node in self.original}
        self._held = {self._root[n] for n in output_nodes(graph) if isinstance(n, fx.Node)}
        self._before = self._dependencies()
        self._readers: dict[fx.Node, set[fx.Node]] = {}
        for node in self.original:
            for source in (*node.all_input_nodes, node):
                self._readers.setdefault(self._root[source], set()).add(node)

    def _allocated(self, node: fx.Node) -> int:
        """Bytes of a call's own storage; views, sizes and elements of a tuple have none."""
        if self._root[node] is not node or node.op == "get_attr" or not isinstance(node.target, OpOverload):
            return 0
        value = node.meta.get("val")
        return tensor_bytes(value) if isinstance(value, (torch.Tensor, list, tuple)) else 0

    def _dependencies(self) -> dict[fx.Node, set[fx.Node]]:
        """Per call, the calls that must come before it."""
        calls = set(self.original)
        before = {node: {s for s in node.all_input_nodes if s in calls} for node in self.original}
        last_effect: fx.Node | None = None
        touched: dict[fx.Node, list[fx.Node]] = {}
        written: dict[fx.Node, fx.Node] = {}
        for node in self.original:
            roots = {self._root[source] for source in node.all_input_nodes}
            before[node].update(written[root] for root in roots if root in written)
            if is_effectful(node) or is_random_call(node):
                if last_effect is not None:
                    before[node].add(last_effect)
                last_effect = node
            if is_effectful(node):
                for root in roots:
                    before[node].update(touched.get(root, ()))
                    written[root] = node
            for root in roots:
                touched.setdefault(root, []).append(node)
            before[node].discard(node)
        return before

    def late(self) -> list[fx.Node]:
        """Calls as late as possible: a list schedule from the end, latest original position first."""
        after: dict[fx.Node, int] = dict.fromkeys(self.original, 0)
        for node in self.original:
            for earlier in self._before[node]:
                after[earlier] += 1
        ready = [-self._position[node] for node in self.original if after[node] == 0]
        heapq.heapify(ready)
        order: list[fx.Node] = []
        while ready:
            node = self.original[-heapq.heappop(ready)]
            order.append(node)
            for earlier in self._before[node]:
                after[earlier] -= 1
                if after[earlier] == 0:
                    heapq.heappush(ready, -self._position[earlier])
        return order[::-1]

    def greedy(self) -> list[fx.Node]:
        """The original order, except that a ready call that frees at least what it takes runs at once."""
        waiting = {node: len(self._before[node]) for node in self.original}
        later: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.original}
        for node in self.original:
            for earlier in self._before[node]:
                later[earlier].append(node)
        unread = {root: len(readers) for root, readers in self._readers.items()}
        ready = [(0, i) for i, node in enumerate(self.original) if waiting[node] == 0]
        order: list[fx.Node] = []
        done: set[fx.Node] = set()
        while ready:
            _, position = heapq.heappop(ready)
            node = self.original[position]
            if node in done:
                continue
            done.add(node)
            order.append(node)
            for root in self._touched(node):
                unread[root] -= 1
            for reader in later[node]:
                waiting[reader] -= 1
            for candidate in self._neighbours(node, later, unread):
                if waiting[candidate] == 0 and candidate not in done:
                    frees = self._gain(candidate, unread) >= 0
                    heapq.heappush(ready, (-1 if frees else 0, self._position[candidate]))
        return order

    def _touched(self, node: fx.Node) -> set[fx.Node]:
        return {self._root[source] for source in (*node.all_input_nodes, node)}

    def _neighbours(
        self, node: fx.Node, later: dict[fx.Node, list[fx.Node]], unread: dict[fx.Node, int]
    ) -> set[fx.Node]:
        """Calls whose readiness or gain may have changed by running ``node``: a gain does for the last reader alone."""
        found = set(later[node])
        for root in self._touched(node):
            if unread[root] == 1:
                found |= self._readers[root]
        return found

    def _gain(self, node: fx.Node, unread: dict[fx.Node, int]) -> int:
        """Bytes freed less bytes taken by running ``node`` next."""
        freed = sum(
            self._bytes.get(root, 0)
            for root in self._touched(node)
            if unread[root] == 1 and root not in self._held and root is not node
        )
        return freed - self._bytes[node]

    def peak(self, order: list[fx.Node]) -> int:
        """Most bytes alive at once when the calls run in ``order``, inputs not counted."""
        last: dict[fx.Node, fx.Node] = {}
        for node in order:
            for root in self._touched(node):
                last[root] = node
        freed: dict[fx.Node, int] = {}
        for root, node in last.items():
            if root not in self._held:
                freed[node] = freed.get(node, 0) + self._bytes.get(root, 0)
        alive = peak = 0
        for node in order:
            alive += self._bytes[node]
            peak = max(peak, alive)
            alive -= freed.get(node, 0)
        return peak


def _apply(graph: fx.Graph, order: list[fx.Node]) -> None:
    output = graph.output_node()
    for node in order:
        output.prepend(node)
