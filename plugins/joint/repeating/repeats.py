"""Segments of a captured graph that repeat each other: the layers of a model, one after the other.

Two segments are alike when they make the same calls with the same plain arguments, and refer alike to their own
results and to what comes from outside.  Who captured the graph does not matter, nor whether layers were marked.
"""

from __future__ import annotations

import bisect
import types
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.torch_compat.operators.ops import OpOverload, OpOverloadPacket

SHORTEST = 6
"""Calls of a segment that is worth the bookkeeping."""

_MOST_DISTANCES = 64
"""Tried from one place."""

_CALLABLE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, OpOverload, OpOverloadPacket, type(torch.relu),
)  # fmt: skip
_PLAIN = (
    int,
    bool,
    str,
    bytes,
    type(None),
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


@attrs.frozen(eq=False)
class CallSegment:
    """One of several segments that are alike, which have their ``kind`` in common.

    ``given`` are the nodes from outside that it refers to, in the order in which it does so first.  ``leaving`` are
    the positions in ``calls`` of results that later calls read, in this segment or in one like it.
    """

    kind: int
    end: int
    calls: tuple[fx.Node, ...]
    given: tuple[fx.Node, ...]
    leaving: tuple[int, ...]


def find_repeats(nodes: Sequence[fx.Node]) -> dict[int, CallSegment]:
    """Segments by the position of their first call; none overlap."""
    return _Search(nodes).run()


class _Search:
    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.nodes = nodes
        self.position = {node: n for n, node in enumerate(nodes)}
        self.references = [_references(node) for node in nodes]
        known: dict[Any, int] = {}
        self.tokens = [known.setdefault(_token(node), len(known)) for node in nodes]
        self.places: dict[tuple, list[int]] = {}
        for n in range(len(nodes) - SHORTEST + 1):
            self.places.setdefault(tuple(self.tokens[n : n + SHORTEST]), []).append(n)

    def run(self) -> dict[int, CallSegment]:
        found: dict[int, CallSegment] = {}
        start = 0
        while start + 2 * SHORTEST <= len(self.nodes):
            length, alike = self.period(start)
            segments = self.segments(start, length, alike, len(found)) if length else {}
            found.update(segments)
            start = max((s.end for s in segments.values()), default=start + 1)
        return found

    def period(self, start: int) -> tuple[int, int]:
        """The length of a segment at ``start`` by repeating which most calls are covered, and how many calls from
        ``start`` on are like the one that many later; (0, 0) where nothing repeats."""
        best, saved = (0, 0), 0
        places = self.places[tuple(self.tokens[start : start + SHORTEST])]
        after = bisect.bisect_right(places, start)
        for other in places[after : after + _MOST_DISTANCES]:
            length = other - start
            if length < SHORTEST:
                continue
            alike = self.alike(start, other)
            if alike // length * length > saved:
                best, saved = (length, alike), alike // length * length
        return best

    def alike(self, start: int, other: int) -> int:
        first = start
        while other < len(self.tokens) and self.tokens[start] == self.tokens[other]:
            start, other = start + 1, other + 1
        return start - first

    def segments(self, start: int, length: int, alike: int, kind: int) -> dict[int, CallSegment]:
        """The segments from about ``start`` on that are alike; empty where there are fewer than two."""
        start += self.narrowest(start, alike % length + 1)
        starts = [start]
        wiring, given = self.wiring(start, length)
        outside = [given]
        while starts[-1] + 2 * length <= len(self.nodes) and len(starts) <= alike // length:
            again, given = self.wiring(starts[-1] + length, length)
            if again != wiring:
                break
            starts.append(starts[-1] + length)
            outside.append(given)
        if len(starts) < 2:
            return {}
        leaving = tuple(n for n in range(length) if any(self.leaves(s + n, s + length) for s in starts))
        return {
            s: CallSegment(kind, s + length, tuple(self.nodes[s : s + length]), given, leaving)
            for s, given in zip(starts, outside, strict=True)
        }

    def narrowest(self, start: int, choices: int) -> int:
        """Which of the places from ``start`` on the fewest results of calls cross."""
        crossing = []
        for place in range(start, start + choices):
            earlier = {r for refs in self.references[place:] for r in refs if self.position[r] < place}
            crossing.append(sum(r.op != "placeholder" for r in earlier))
        return crossing.index(min(crossing))

    def leaves(self, position: int, end: int) -> bool:
        return any(self.position[user] >= end for user in self.nodes[position].users)

    def wiring(self, start: int, length: int) -> tuple[list[int], tuple[fx.Node, ...]]:
        """What each argument of each call refers to: a call of the segment by its number, or what comes from outside,
        numbered from -1 down; and the latter."""
        given: dict[fx.Node, int] = {}
        found: list[int] = []
        for references in self.references[start : start + length]:
            for node in references:
                inner = self.position[node] - start
                found.append(inner if inner >= 0 else given.setdefault(node, -1 - len(given)))
        return found, tuple(given)


def _references(node: fx.Node) -> list[fx.Node]:
    """The nodes among the arguments of one, each time that it is there."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def _token(node: fx.Node) -> Any:
    """Equal for calls that differ in nothing but the nodes among their arguments; never for other nodes."""
    callable_ = node.op == "call_method" or (node.op == "call_function" and isinstance(node.target, _CALLABLE))
    if not callable_ or "unbacked_bindings" in node.meta:
        return node
    return node.op, node.target, _form(node.args), _form(node.kwargs)


def _form(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return fx.Node
    if isinstance(value, (tuple, list)):
        return (isinstance(value, list), *map(_form, value))
    if isinstance(value, dict):
        return tuple((key, _form(v)) for key, v in value.items())
    if isinstance(value, slice):
        return slice, _form(value.start), _form(value.stop), _form(value.step)
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, value.real.hex(), value.imag.hex()
    return (type(value), value) if type(value) in _PLAIN else object()
