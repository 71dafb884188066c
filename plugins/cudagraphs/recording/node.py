"""Nodes: one recording, what has to hold for a replay of it, and the function that replays it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch

from turret.hooks.graph_capture import tensor_at
from turret.plugins.cudagraphs.recording.recorder import Item, Recorded
from turret.plugins.cudagraphs.work import Key, Layout, RecordingDevice, Shapes

ALIGNMENT = 16
"""Bytes: kernels that were chosen for inputs at multiples of it need inputs at multiples of it."""

Kind = Literal["static", "pooled", "patched", "copied", "fresh", "copied out", "alias"]


@attrs.frozen
class Decision:
    """What is done with one input (``number``), output or float, and why."""

    value: Literal["input", "output", "float", "intermediate"]
    number: int
    kind: Kind
    reason: str

    def __str__(self) -> str:
        return f"{self.value} {self.number} {self.kind}: {self.reason}"


@attrs.frozen(eq=False)
class Inputs:
    """Where the inputs of a call lie, as far as a replay depends on it.

    ``fixed``: inputs that a replay reads where they lay, with the address; ``moving``: those that may lie elsewhere;
    ``pooled``: which of the fixed ones are outputs of nodes on the path.
    """

    fixed: dict[int, int]
    moving: dict[int, Layout]
    pooled: frozenset[int] = frozenset()
    reasons: Mapping[int, str] = attrs.field(factory=dict)


Block = tuple[int, int]
"""Memory in the pool that outputs of a node lie in: address and bytes."""


@attrs.frozen
class Spot:
    """An output's memory by where the node that made it is on the path, and the block's number there."""

    depth: int
    block: int


@attrs.define(eq=False)
class Tally:
    """How often a node was replayed, and whether that raised: what its recording is then is not known."""

    replays: int = 0
    broken: bool = False


@attrs.define(eq=False)
class Node:
    """A recording in the tree.

    ``blocks``: memory that its outputs keep; ``expects_dead``: memory of nodes before it on the path that it works in,
    so that nothing may live there; ``live_after``: all that lived when it was recorded; ``state``: which blocks of the
    pool were in use then.
    """

    number: int
    name: str
    key: Key
    shapes: Shapes
    inputs: Inputs
    recorded: Recorded
    decisions: tuple[Decision, ...] = ()
    blocks: tuple[Block, ...] = ()
    expects_dead: tuple[Spot, ...] = ()
    dead_numbers: tuple[int, ...] = ()
    """The same by their numbers among all blocks of the path."""
    live_after: frozenset[Spot] = frozenset()
    state: Any = None
    tally: Tally = attrs.field(factory=lambda: Tally())
    replay: Callable[[list, int], list | None] = attrs.field(default=None, repr=False)  # type: ignore[assignment]
    children: weakref.WeakKeyDictionary = attrs.field(factory=weakref.WeakKeyDictionary)
    alignments: dict[int, int] = attrs.field(factory=dict)
    first_addresses: dict[Item, int] = attrs.field(factory=dict)
    version_bumps: dict[int, int] = attrs.field(factory=dict)
    why: str = ""
    """Why there is this recording beside others of its function; empty of a first one."""
    bytes_kept: int = 0
    """Bytes of the pool that are in use when it, and all before it on the path, has run."""
    bytes_taken: int = 0
    """Bytes that the pool grew by for it."""
    any_size: bool = False
    """All of it is written anew in each replay, so that it serves calls of any sizes."""

    @property
    def bytes_copied(self) -> int:
        """Bytes that a replay copies."""
        return sum(p.layout.nbytes for p in self.recorded.pinned.values())

    @property
    def patched_nodes(self) -> int:
        """Pieces of the recorded work that are handed an address which may change."""
        if self.any_size:
            return len(self.recorded.recording.nodes)
        return len({word.node for words in self.recorded.words.values() for word in words})

    def of(self, function: Any, key: Key) -> list[Node]:
        """The nodes behind this one of a function and a size key."""
        return self.children.setdefault(function, {}).setdefault(key, [])


def mismatch(node: Node, args: Sequence[Any]) -> str:
    """Why a node does not fit the inputs of a call; empty where it does."""
    for n, address in node.inputs.fixed.items():
        if args[n].data_ptr() != address:
            return f"input {n} ({'an output of the path' if n in node.inputs.pooled else 'static'}) lies elsewhere"
    for n, rest in node.alignments.items():
        if args[n].data_ptr() % ALIGNMENT != rest:
            return f"input {n} is aligned otherwise ({args[n].data_ptr() % ALIGNMENT} bytes past a multiple of 16)"
    return ""


def overlapping(args: Sequence[Any], pinned: Sequence[int], written: frozenset[int]) -> str:
    """Why copies cannot stand for some inputs: they share memory with another input, and one is written to."""
    tensors = [n for n, a in enumerate(args) if isinstance(a, torch.Tensor) and a.numel()]
    for n in pinned:
        for m in tensors:
            if m != n and (n in written or m in written) and _overlap(args[n], args[m]):
                return f"inputs {n} and {m} share memory, and one is written to"
    return ""


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    a, b = one.data_ptr(), other.data_ptr()
    return a < b + Layout.of(other).nbytes and b < a + Layout.of(one).nbytes


def flat(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """All memory from a tensor's first element to its last."""
    return torch.as_strided(tensor, (layout.extent,), (1,), tensor.storage_offset())


def flat_at(address: int, layout: Layout, device: torch.device) -> torch.Tensor:
    """The same over memory at an address."""
    return tensor_at(address, (layout.extent,), (1,), layout.dtype, device)


def on_device(args: Sequence[Any], recording_device: RecordingDevice, unread: frozenset[int]) -> str:
    """Why a call with these inputs cannot be recorded: one is not on the device; empty where all that are read are."""
    for n, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.device != recording_device.device and n not in unread:
            return f"input {n} is a tensor on {value.device}"
    return ""


def memory_at(address: int, nbytes: int, device: torch.device, owner: Any) -> torch.UntypedStorage:
    """A storage over memory of a pool; while it lives, so does ``owner``, which keeps that memory."""
    storage = tensor_at(address, (nbytes,), (1,), torch.uint8, device).untyped_storage()
    storage.graph_memory = owner  # type: ignore[attr-defined]
    return storage


def tensor_on(
    device: torch.device,
    storage: torch.UntypedStorage,
    offset: int,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """A tensor over a storage."""
    return torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, stride)
