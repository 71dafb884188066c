"""The calls since a generation began, and which of the memory that they gave out is still held by somebody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from turret.hooks.graph_capture import MemoryPool
from turret.plugins.cudagraphs.recording.node import Block, Node, Spot
from turret.torch_compat.native import is_storage_gone, storage_of_weak_pointer

OVERWRITTEN = (
    "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. It was given out by "
    "{name}. To prevent overwriting, clone the tensor outside of torch.compile() or call "
    "torch.compiler.cudagraph_mark_step_begin() before each model invocation; with the option "
    'cudagraph_outputs="fresh" nothing is overwritten.'
)


@attrs.define(eq=False)
class Given:
    """A call on the path: a replay of ``node``, or a warm-up (None).

    ``held``: who holds each block.  ``state``: which blocks of the pool were in use when it was recorded, or had run to
    warm up; ``live_after``: which those are.
    """

    name: str
    node: Node | None
    blocks: Sequence[Block]
    held: list[StorageWeakRef]
    state: Any
    live_after: frozenset[Spot]


@attrs.define(eq=False)
class Path:
    """Calls from a root on, in the order in which they ran."""

    calls: list[Given] = attrs.field(factory=list)
    pointers: list[int] = attrs.field(factory=list)
    """The weak references to all blocks, in the order of ``spots``: replays look at them in one loop in C."""

    def add(self, call: Given) -> None:
        self.calls.append(call)
        self.pointers += [held.cdata for held in call.held]

    def numbers(self, spots: Sequence[Spot]) -> tuple[int, ...]:
        """The numbers of blocks among all; behind the same calls they are the same."""
        known = {spot: n for n, spot in enumerate(self.spots())}
        return tuple(known[spot] for spot in spots)

    def are_dead(self, numbers: Sequence[int]) -> bool:
        """Whether nobody holds any of these blocks."""
        return all(map(is_storage_gone, map(self.pointers.__getitem__, numbers)))

    def lives(self, spot: Spot) -> bool:
        """Whether somebody holds a tensor in a block."""
        return not self.calls[spot.depth].held[spot.block].expired()

    def spots(self) -> Iterator[Spot]:
        """All blocks that were given out."""
        for depth, call in enumerate(self.calls):
            for block in range(len(call.held)):
                yield Spot(depth, block)

    def live(self) -> frozenset[Spot]:
        return frozenset(spot for spot in self.spots() if self.lives(spot))

    def dead(self) -> tuple[Spot, ...]:
        return tuple(spot for spot in self.spots() if not self.lives(spot))

    def any_lives(self) -> bool:
        return not all(map(is_storage_gone, self.pointers))

    def address(self, spot: Spot) -> int:
        return self.calls[spot.depth].blocks[spot.block][0]

    def dead_since(self) -> list[int]:
        """Where blocks begin that lived when the last call was recorded, and that nobody holds any more."""
        last = self.calls[-1]
        return [self.address(spot) for spot in last.live_after if not self.lives(spot)]

    def pooled(self, args: Sequence[Any]) -> dict[int, Spot]:
        """Which inputs lie in memory that the path gave out, and where."""
        known = {self.calls[s.depth].held[s.block].cdata: s for s in self.live()}
        tensors = ((n, a) for n, a in enumerate(args) if isinstance(a, torch.Tensor))
        found = ((n, known.get(a.untyped_storage()._cdata)) for n, a in tensors)
        return {n: spot for n, spot in found if spot is not None}

    def invalidate(self, pool: MemoryPool) -> None:
        """Have everybody who still looks at what was given out be told that it is overwritten."""
        for call in self.calls:
            for held in call.held:
                storage = storage_of_weak_pointer(held.cdata)
                if storage is not None:
                    pool.invalidate(storage, OVERWRITTEN.format(name=call.name))
