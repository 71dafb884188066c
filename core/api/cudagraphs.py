"""What a program tells graph capture, and what graph capture tells a program: step marks, and ``report``."""

from __future__ import annotations

import sys
import weakref
from typing import Protocol

import attrs

from turret.frames import frame_hook


@attrs.frozen
class RecordingReport:
    """One recording of a function: its number in its pool, the sizes that it serves, and how often it was replayed.

    ``sizes``: None for all that launch the same kernels.  ``why``: why there is this one beside others; empty of a
    first one.  ``decisions``: for each input and output what is done with it, and why.  ``bytes_copied``: what a replay
    copies; ``patched_nodes`` of ``nodes``: its pieces of work whose arguments are written anew.
    """

    number: int
    sizes: tuple[int, ...] | None
    replays: int
    why: str
    decisions: tuple[str, ...]
    bytes_copied: int
    nodes: int
    patched_nodes: int

    def __str__(self) -> str:
        sizes = "any size" if self.sizes is None else f"sizes {self.sizes}" if self.sizes else "its sizes"
        work = f"{self.bytes_copied} bytes copied, {self.patched_nodes} of {self.nodes} nodes patched"
        return f"Graph[{self.number}] of {sizes}: {self.replays} replays, {work}"


@attrs.frozen
class FunctionReport:
    """Graph capture of one function: a compiled graph, or the part of it between two cuts.

    ``title``: the user's function that the graph was captured from, where it is known.
    ``outputs``: ``fresh``, ``pool`` or ``legacy``.  ``recorded``: the recordings that are kept, oldest first;
    ``recordings``: how many were made.  ``rerecordings``: why it was recorded more than once, a reason each.
    ``plain_calls``: calls that ran without a recording, by reason; ``padded_calls``: how many were padded to another
    size, whose recording served them.  ``any_size``: recordings that serve calls of all sizes which launch the same
    kernels; ``one_size``: why each serves its sizes alone.
    """

    name: str
    role: str
    device: str
    outputs: str
    warm_ups: int = 0
    recordings: int = 0
    replays: int = 0
    sizes: int = 0
    padded_calls: int = 0
    any_size: int = 0
    one_size: str = ""
    rerecordings: tuple[str, ...] = ()
    plain_calls: dict[str, int] = attrs.field(factory=dict)
    recorded: tuple[RecordingReport, ...] = ()
    skipped: str = ""
    title: str = ""

    @property
    def decisions(self) -> tuple[str, ...]:
        """Those of the latest recording."""
        return self.recorded[-1].decisions if self.recorded else ()

    @property
    def bytes_copied(self) -> int:
        """Bytes that a replay of the latest recording copies."""
        return self.recorded[-1].bytes_copied if self.recorded else 0

    @property
    def nodes(self) -> int:
        """Pieces of work of the latest recording."""
        return self.recorded[-1].nodes if self.recorded else 0

    @property
    def patched_nodes(self) -> int:
        """Those whose arguments are written anew."""
        return self.recorded[-1].patched_nodes if self.recorded else 0

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.name} on {self.device} is not captured: {self.skipped}"
        sizes = "any size" if self.any_size and not self.sizes else f"{self.sizes} sizes"
        counts = f"{self.warm_ups} warm-ups, {self.recordings} recordings of {sizes}, {self.replays} replays"
        lines = [
            f"{self.title} ({self.name}) on {self.device}, outputs {self.outputs}: {counts}",
            f"  a replay copies {self.bytes_copied} bytes; {self.patched_nodes} of {self.nodes} nodes are patched",
        ]
        lines += ["  one recording serves calls of all sizes"] if self.any_size == 1 else []
        lines += [f"  {self.any_size} recordings serve calls of all sizes"] if self.any_size > 1 else []
        lines += [f"  a recording serves its sizes alone: {self.one_size}"] if self.one_size else []
        lines += [f"  {self.padded_calls} calls were padded to a size that is recorded"] if self.padded_calls else []
        lines += [f"  recorded again: {reason}" for reason in self.rerecordings]
        lines += [f"  {count} calls ran without a recording: {reason}" for reason, count in self.plain_calls.items()]
        return "\n".join([*lines, *self._recorded_lines()])

    def _recorded_lines(self) -> list[str]:
        """A line for each recording, and decisions behind the last of those that have the same."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for each in self.recorded:
            alike.setdefault(each.decisions, []).append(f"  {each}")
        return [line for decisions, heads in alike.items() for line in (*heads, *(f"    {d}" for d in decisions))]


@attrs.frozen
class PathReport:
    """Recordings that are replayed one behind the other, from a root to one that nothing follows.

    ``graphs``: their numbers in the tree; ``names``: their functions.  ``bytes_kept``: of the pool, in use when all of
    them have run and their outputs live; ``bytes_taken``: by how much the pool grew for them.  What replays take from
    the device's allocator (fresh outputs) is in neither.
    """

    graphs: tuple[int, ...]
    names: tuple[str, ...]
    bytes_kept: int
    bytes_taken: int

    def __str__(self) -> str:
        path = " → ".join(f"Graph[{n}] {name}()" for n, name in zip(self.graphs, self.names, strict=True))
        return f"{path}: {self.bytes_kept} bytes kept, {self.bytes_taken} taken"


@attrs.frozen
class PoolReport:
    """One memory pool: bytes it holds, the recordings in it as a tree, and the memory of each path through that."""

    device: str
    stream: int
    outputs: str
    reserved_bytes: int
    graphs: int
    tree: str
    paths: tuple[PathReport, ...] = ()

    def __str__(self) -> str:
        paths = [f"  {path}" for path in self.paths]
        return "\n".join([self.tree, f"{self.outputs} outputs, {self.reserved_bytes} bytes in the pool", *paths])


@attrs.frozen
class Report:
    """All of graph capture in this process."""

    functions: tuple[FunctionReport, ...]
    pools: tuple[PoolReport, ...]

    @property
    def recordings(self) -> int:
        return sum(f.recordings for f in self.functions)

    @property
    def replays(self) -> int:
        return sum(f.replays for f in self.functions)

    @property
    def bytes_copied(self) -> int:
        """Bytes that one replay of each function copies."""
        return sum(f.bytes_copied for f in self.functions)

    def __str__(self) -> str:
        if not self.functions:
            return "no graphs are captured (the option cudagraphs turns it on)"
        return "\n".join([*map(str, self.functions), *map(str, self.pools)])


class FunctionTeller(Protocol):
    """A function that can say what became of it."""

    def reported(self) -> FunctionReport: ...


class PoolTeller(Protocol):
    """A pool that can say what is in it."""

    def reported(self) -> PoolReport: ...


functions: weakref.WeakSet[FunctionTeller] = weakref.WeakSet()
"""Functions that are captured, or would be if nothing stood in the way."""

pools: weakref.WeakSet[PoolTeller] = weakref.WeakSet()
"""Pools that recordings lie in."""


def report() -> Report:
    """What is recorded, what was decided for each input and output, and what replays cost."""
    told = sorted((f.reported() for f in functions), key=lambda f: f.name)
    return Report(tuple(told), tuple(p.reported() for p in pools))


class _Marks:
    """How often a step was marked, since ``turret.reset``."""

    count = 0

    def forget(self) -> None:
        self.count = 0


_marks = _Marks()
frame_hook.captures.add(_marks)


def cudagraph_mark_step_begin() -> None:
    """Say that a new step begins: outputs of the steps before that lie in a pool may be overwritten from now on.

    It matters with ``cudagraph_outputs="pool"`` alone.  ``torch.compiler.cudagraph_mark_step_begin`` does the same.
    """
    _marks.count += 1


def step_marks() -> int:
    """A number that changes with each mark, of ours or of torch's."""
    torchs = sys.modules.get("torch._inductor.cudagraph_trees")  # imported by whoever makes such a mark
    return _marks.count - (torchs.MarkStepBox.mark_step_counter if torchs is not None else 0)
