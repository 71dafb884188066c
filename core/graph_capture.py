"""Graph capture: launches recorded once and replayed with other arguments, as far as a device can do that.

A device that can has a ``GraphCapture`` in ``Device.graphs``.  What is recorded is a list of nodes whose arguments are
bytes.  Which of them are addresses need not be known: record the same call twice over different memory, and the words
that differ as the addresses do (``address_words``) are those to patch before a replay over other memory.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

WORD = 8
"""Bytes of an address."""


@attrs.frozen
class RecordedNode:
    """One piece of recorded work; ``arguments`` is what it was handed, as it lies in the recording."""

    kind: Literal["kernel", "copy", "clear", "other"]
    name: str
    arguments: bytes = b""


@attrs.frozen
class Patch:
    """An address to write into the arguments of a node, ``offset`` bytes from their start."""

    node: int
    offset: int
    address: int


class Recording(abc.ABC):
    """Work that was recorded, ready to be replayed."""

    @property
    @abc.abstractmethod
    def nodes(self) -> Sequence[RecordedNode]:
        """The work in the order in which it was recorded, with the arguments of its next replay."""

    @abc.abstractmethod
    def patch(self, patches: Sequence[Patch]) -> None:
        """Change arguments for all later replays; a replay under way is not changed."""

    @abc.abstractmethod
    def replay(self, stream: int) -> None:
        """Queue all of it on a stream."""


class GraphCapture(abc.ABC):
    """How a device records what is launched on its current stream."""

    @abc.abstractmethod
    def record(self, index: int, run: Callable[[], Any]) -> Recording:
        """Record what ``run`` launches on device ``index``, which is queued for nothing; ``run`` itself runs once.

        Memory that ``run`` takes from torch's allocator stays the recording's as long as that lives.
        """


def address_words(
    first: Recording, second: Recording, moved: Mapping[int, tuple[int, int]]
) -> dict[Any, tuple[tuple[int, int], ...]]:
    """Where addresses lie in the arguments of a call that was recorded twice: ``key -> ((node, offset), ...)``.

    ``moved`` maps a key to the addresses of the same memory in the two recordings, which must differ.  Raises
    ``ValueError`` where the recordings are not of the same work, or arguments differ in what is no such address.
    """
    found: dict[Any, list[tuple[int, int]]] = {key: [] for key in moved}
    known = {addresses: key for key, addresses in moved.items()}
    if len(first.nodes) != len(second.nodes):
        raise ValueError(f"recordings of {len(first.nodes)} and {len(second.nodes)} nodes are not of the same work")
    for number, (one, other) in enumerate(zip(first.nodes, second.nodes, strict=True)):
        if (one.kind, one.name, len(one.arguments)) != (other.kind, other.name, len(other.arguments)):
            raise ValueError(
                f"node {number} is {one.kind} {one.name} in one recording, {other.kind} {other.name} in the other"
            )
        for offset in _differences(one.arguments, other.arguments):
            pair = _word(one.arguments, offset), _word(other.arguments, offset)
            if pair not in known:
                raise ValueError(
                    f"bytes {offset} of {one.name} (node {number}) differ, and are no address that moved: {pair}"
                )
            found[known[pair]].append((number, offset))
    return {key: tuple(places) for key, places in found.items()}


def _differences(one: bytes, other: bytes) -> list[int]:
    """Offsets of the aligned words that differ."""
    return [n for n in range(0, len(one), WORD) if one[n : n + WORD] != other[n : n + WORD]]


def _word(arguments: bytes, offset: int) -> int:
    return int.from_bytes(arguments[offset : offset + WORD], "little")
