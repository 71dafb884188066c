"""Fusion: pairs of groups in order of the memory traffic that joining them saves."""

from __future__ import annotations

import functools
import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from turret.graph.partitioning.tags import RECOMPUTED
from turret.hooks.devices import device_for
from turret.ir import FusionCandidate, FusionDecision, LoopProgram
from turret.ir.index import hinted, product
from turret.ir.schedule import FusionKind, Kernel
from turret.plugins.schedule.fusion.graph import StepGraph
from turret.plugins.schedule.fusion.groups import Group, fuse, start
from turret.plugins.schedule.fusion.kernels import kernel_of
from turret.plugins.schedule.fusion.units import Unit

NEIGHBOURS = 6
"""How many later readers of the same tensor a reader is paired with; more pairs rarely find more fusions."""

LARGEST_KERNEL = 1500
"""Expression nodes in one kernel: beyond, registers spill and compile time grows faster than what is saved."""

UNKNOWN_BYTES = 1 << 20
"""What a tensor of symbolic size is taken to weigh when fusions are compared."""

MOST_PRODUCTS = 2
"""Matrix products of one kernel (a gate and what it lets through): each keeps a tile of sums in registers."""

MOST_TENSORS = 64
"""Tensors of one kernel that has nothing but its loops in common."""

OPEN_KERNELS = 4
"""How many kernels of one shape a small one may still join: those that depend on one another stay apart."""

BETWEEN = "another step lies between"
"""Reason of a fusion that other fusions may make possible."""

Score = Callable[[FusionCandidate], float | None]


@attrs.define(eq=False)
class Fuser:
    """Joins groups of one program greedily; ``groups`` maps unit numbers to their group."""

    program: LoopProgram
    graph: StepGraph
    score: Score
    max_members: int
    needed: frozenset[str]
    elide_casts: bool
    groups: dict[int, Group] = attrs.field(factory=dict)
    decisions: list[FusionDecision] = attrs.field(factory=list)
    sizes: dict[str, int] = attrs.field(factory=dict)
    again: float = math.inf
    """The first unit that is made again for a backward in the same graph."""

    def run(self, units: list[Unit]) -> list[Group]:
        """Fuse all that pays; returns the groups in program order."""
        for name, decl in self.program.declarations().items():
            elements = hinted(product(decl.shape), self.program.hints)
            self.sizes[name] = UNKNOWN_BYTES if elements is None else elements * decl.dtype.itemsize
        for unit in units:
            if unit.is_loop:
                self.groups[unit.number] = start(unit)
                if RECOMPUTED in unit.tensor.name:
                    self.again = min(self.again, unit.number)
        queue = [(-self.saved(self.groups[a], self.groups[b]), a, b) for a, b in self.pairs(units)]
        heapq.heapify(queue)
        tried: set[tuple[int, int, int, int]] = set()
        while queue:
            _, a, b = heapq.heappop(queue)
            first, second = self.groups[a], self.groups[b]
            # A group is known by any unit of it and how many it has: groups only grow.
            key = (first.first, len(first.members), second.first, len(second.members))
            if first is not second and key not in tried:
                tried.add(key)
                self.consider(first, second)
        self.gather_small()
        return self.in_order()

    def in_order(self) -> list[Group]:
        """All groups, in program order."""
        return sorted(dict.fromkeys(self.groups.values()), key=lambda g: g.first)

    def gather_small(self) -> None:
        """Join kernels over the same loops, of which each takes less time than its launch.

        They need share no tensor: counters of norms, small weights in an optimizer, norms of gradients.
        """
        alike: dict[tuple[Any, ...], list[Group]] = defaultdict(list)
        for group in self.in_order():
            launch = _launch_bytes(group)
            loops = tuple(tuple(v.extent for v in each) for each in (group.outer, group.inner))
            rows = bool(group.outer and group.inner)  # which hold registers, and share the device by themselves
            if rows or self.traffic(group) >= launch or not all(isinstance(e, int) for each in loops for e in each):
                continue
            kernels = alike[launch, *loops, *_devices(group)]
            for other in kernels[-OPEN_KERNELS:]:
                joined = len(self.names(other) | self.names(group)) <= MOST_TENSORS and self.consider(
                    other, group, launch
                )
                if joined:
                    kernels[kernels.index(other)] = joined
                    break
            else:
                kernels.append(group)

    def traffic(self, group: Group) -> int:
        """Bytes that a group's kernel reads and writes, values that it hands on included."""
        return sum(self.sizes[name] for name in self.names(group))

    def names(self, group: Group) -> frozenset[str]:
        """Tensors that a group reads or makes."""
        return group.reads | group.made.keys()

    def pairs(self, units: list[Unit]) -> Iterable[tuple[int, int]]:
        """Producers with their consumers, and readers of one tensor with the readers that follow."""
        readers: dict[str, list[int]] = defaultdict(list)
        makers: dict[str, int] = {}
        for unit in units:
            if unit.is_loop:
                makers[unit.tensor.name] = unit.number
                for name in unit.reads():
                    readers[name].append(unit.number)
        found: dict[tuple[int, int], None] = {}
        for name, numbers in readers.items():
            if name in makers:
                found.update(((makers[name], n), None) for n in numbers)
            for position, number in enumerate(numbers):
                found.update(((number, n), None) for n in numbers[position + 1 : position + 1 + NEIGHBOURS])
        return found

    def saved(self, first: Group, second: Group) -> int:
        """Bytes of memory traffic that one kernel saves against two."""
        total = 0
        for one, other in ((first, second), (second, first)):
            for name in other.reads:
                if name in one.made:
                    outside = name in self.needed or self.used_outside(name, first, second)
                    total += self.sizes[name] * (1 if outside else 2)
        for name in first.reads & second.reads:
            if name not in first.made and name not in second.made:
                total += self.sizes[name]
        return total

    def used_outside(self, name: str, first: Group, second: Group) -> bool:
        """Whether any step but these two groups reads a tensor."""
        inside = (first, second)
        return any(self.groups.get(n) not in inside for n in self.graph.readers.get(name, ()))

    def consider(self, first: Group, second: Group, launch: int = 0) -> Group | None:
        """Fuse two groups if that is legal and worth it, and record why or why not; ``launch``: what one less is worth,
        in bytes."""
        saved = self.saved(first, second) + launch
        merged, reason = self.attempt(first, second, saved)
        self.decisions.append(FusionDecision(_label(first), _label(second), merged is not None, saved, reason))
        if merged is not None:
            self.graph.join(first, second)
            for member in merged.members:
                self.groups[member.unit.number] = merged
        return merged

    def attempt(self, first: Group, second: Group, saved: int) -> tuple[Group | None, str]:
        """The fused group, or None and the reason."""
        if saved <= 0:
            return None, "no memory traffic saved"
        if len(first.members) + len(second.members) > self.max_members:
            return None, f"more than {self.max_members} definitions"
        total = first.size + second.size
        if total > LARGEST_KERNEL:
            return None, f"expressions of {total} nodes in one kernel"
        if _devices(first) != _devices(second):
            return None, "other device"
        if self.is_too_early(first, second):
            return None, "made again, and not needed yet"
        connected = self.graph.connected(first, second)
        if reason := _refuses_product(first, second, connected):
            return None, reason
        if self.graph.would_cycle(first, second):
            return None, BETWEEN
        merged = fuse(first, second)
        if merged is None:
            return None, "loops do not line up"
        kind = self.kind(first, second) if connected else "horizontal"
        worth = self.score(
            FusionCandidate(
                kind,
                saved,
                _shared(first, second),
                functools.partial(self.kernel, first),
                functools.partial(self.kernel, second),
            )
        )
        if worth is None or worth <= 0:
            return None, f"score {worth}"
        return merged, kind

    def is_too_early(self, first: Group, second: Group) -> bool:
        """Whether one group is made again for a backward that begins after the other: it would wait in memory."""
        earlier, later = sorted((first, second), key=lambda group: group.first)
        return earlier.first < self.again and any(RECOMPUTED in name for name in later.made)

    def kind(self, first: Group, second: Group) -> FusionKind:
        """How two groups of which one uses the other hang together."""
        if not first.matrix_products and not second.matrix_products:
            return "vertical"
        maker, taker = (first, second) if second.reads & first.made.keys() else (second, first)
        return "epilogue" if maker.matrix_products or not taker.matrix_products else "prologue"

    def kernel(self, group: Group) -> Kernel:
        """The kernel a group would be by itself, for scoring."""
        return kernel_of(group, group.made, _label(group), self.elide_casts)


def _refuses_product(first: Group, second: Group, connected: bool) -> str:
    """Why a kernel of a matrix product takes no part in a fusion; empty where it may."""
    products = first.matrix_products + second.matrix_products
    if not products:
        return ""
    if not connected:
        return "a matrix product is fused with what uses it alone"
    if products > MOST_PRODUCTS:
        return f"more than {MOST_PRODUCTS} matrix products in one kernel"
    if any(group.inner and not group.matrix_products for group in (first, second)):
        return "rows beside a matrix product"
    return ""


def _label(group: Group) -> str:
    return "+".join(m.unit.tensor.name for m in group.members[:4]) + ("+..." if len(group.members) > 4 else "")


def _launch_bytes(group: Group) -> int:
    return device_for(group.members[0].unit.tensor.device.type).costs.launch_bytes


def _devices(group: Group) -> set[str]:
    return {str(m.unit.tensor.device) for m in group.members}


def _shared(first: Group, second: Group) -> tuple[str, ...]:
    return tuple(sorted((first.reads | first.made.keys()) & (second.reads | second.made.keys())))
