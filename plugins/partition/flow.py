"""Minimum cut of a capacitated graph: Dinic's algorithm over integer capacities in flat lists."""

from __future__ import annotations

from collections import deque

UNBOUNDED = 1 << 60
"""A capacity that no minimum cut crosses, as long as a finite cut exists."""


class FlowNetwork:
    """A directed graph with integer capacities between vertices ``0 .. count - 1``.

    ``source`` and ``sink`` are two more vertices.  Build with ``connect``; ``sink_side`` solves once.
    """

    def __init__(self, count: int) -> None:
        self.source, self.sink = count, count + 1
        self._heads: list[list[int]] = [[] for _ in range(count + 2)]
        self._target: list[int] = []
        self._capacity: list[int] = []

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge; a capacity of zero or less adds nothing."""
        if capacity <= 0:
            return
        edge = len(self._target)
        self._target += (head, tail)
        self._capacity += (min(capacity, UNBOUNDED), 0)
        self._heads[tail].append(edge)
        self._heads[head].append(edge + 1)

    def sink_side(self) -> list[bool]:
        """Per vertex, whether it lies on the sink's side of the minimum cut that is nearest to the sink.

        ``ValueError`` when source and sink are joined by unbounded edges alone.
        """
        while (level := self._levels()) is not None:
            self._augment(level)
        return self._reaches_sink()

    def _levels(self) -> list[int] | None:
        """Distance to the sink along residual edges, or None when the source no longer reaches it."""
        level = [-1] * len(self._heads)
        level[self.sink] = 0
        queue = deque([self.sink])
        target, capacity = self._target, self._capacity
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                tail = target[edge]
                if capacity[edge ^ 1] > 0 and level[tail] < 0:
                    level[tail] = level[vertex] + 1
                    if tail != self.source:
                        queue.append(tail)
        return None if level[self.source] < 0 else level

    def _augment(self, level: list[int]) -> None:
        """Push flow along shortest paths until none is left (a blocking flow)."""
        heads, target, capacity = self._heads, self._target, self._capacity
        position = [0] * len(heads)
        path: list[int] = []
        vertex = self.source
        while True:
            if vertex == self.sink:
                vertex = self._push(path)
                continue
            edges = heads[vertex]
            while position[vertex] < len(edges):
                edge = edges[position[vertex]]
                if capacity[edge] > 0 and level[target[edge]] == level[vertex] - 1:
                    break
                position[vertex] += 1
            else:
                if not path:
                    return
                level[vertex] = -1
                vertex = target[path.pop() ^ 1]
                continue
            path.append(edge)
            vertex = target[edge]

    def _push(self, path: list[int]) -> int:
        """Fill the path's narrowest edge; shortens ``path`` to end before it and returns that edge's tail."""
        capacity = self._capacity
        amount = min(capacity[edge] for edge in path)
        if amount >= UNBOUNDED:
            raise ValueError("no finite cut: source and sink are joined by unbounded edges")
        first = None
        for position, edge in enumerate(path):
            if capacity[edge] < UNBOUNDED:
                capacity[edge] -= amount
                if capacity[edge] == 0 and first is None:
                    first = position
            if capacity[edge ^ 1] < UNBOUNDED:
                capacity[edge ^ 1] += amount
        assert first is not None
        tail = self._target[path[first] ^ 1]
        del path[first:]
        return tail

    def _reaches_sink(self) -> list[bool]:
        reached = [False] * len(self._heads)
        reached[self.sink] = True
        queue = deque([self.sink])
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                tail = self._target[edge]
                if self._capacity[edge ^ 1] > 0 and not reached[tail]:
                    reached[tail] = True
                    queue.append(tail)
        return reached
