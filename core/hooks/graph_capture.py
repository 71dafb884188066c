"""Graph capture: launches recorded once and replayed with other arguments, as far as a device can do that.

A device that can has a ``GraphCapture`` in ``Device.graphs``.  A recording is a list of nodes whose arguments are
bytes.  Which of them are addresses need not be known: record the same call twice over different memory, and the words
that differ as the addresses do (``address_words``) are those to write anew before a replay over other memory.

A recording's intermediate values lie in a ``MemoryPool``, which many recordings share.  Replaying moves no bookkeeping
of the allocator, so that what is recorded after a replay begins with ``MemoryPool.restore``.
"""

from __future__ import annotations

import abc
import functools
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import attrs
import torch

from turret.hooks.segments import Segment
from turret.storage.fork_safety import Lock
from turret.torch_compat.native import storage_at

WORD = 8
"""Bytes of an address."""


WorkKind = Literal["kernel", "copy", "clear", "other"]
"""What a piece of recorded work does."""


@attrs.frozen
class RecordedNode:
    """One piece of recorded work; ``arguments`` is what it was handed, as it lies in the recording.

    What cannot be patched is ``other``; without arguments it is not known which memory it works on.
    """

    kind: WorkKind
    name: str
    arguments: bytes = b""

    @functools.cached_property
    def words(self) -> tuple[int, ...]:
        """The arguments as words, the end of the last one zeros."""
        count = -(-len(self.arguments) // WORD)
        return struct.unpack(f"<{count}Q", self.arguments.ljust(count * WORD, b"\0"))


@attrs.frozen
class Patch:
    """An address to write into the arguments of a node, ``offset`` bytes from their start."""

    node: int
    offset: int
    address: int


@attrs.frozen
class AddressWord:
    """A word of a node's arguments, ``offset`` bytes from their start, that holds a tensor's address plus ``delta``."""

    node: int
    offset: int
    delta: int = 0


@attrs.frozen
class TableWord:
    """A word of a node's arguments, ``offset`` bytes from their start, that holds an address: what the table of slots
    has in ``entry``, plus ``delta``."""

    node: int
    offset: int
    entry: int
    delta: int = 0


@attrs.frozen(eq=False)
class KnownCall:
    """A library call whose launches are known: ``nodes`` of a recording, all of whose addresses are in ``words``."""

    recording: Recording
    nodes: range
    words: tuple[TableWord, ...]


@attrs.frozen
class Moved:
    """Memory that lay elsewhere in the second of two recordings: where it began in each, and its length in bytes.

    With ``is_number`` a word-sized number that was another: its bits in each.  Any call may have been given it.
    """

    first: int
    second: int
    nbytes: int
    is_number: bool = False


@attrs.frozen
class RecordedCall:
    """A library call that was recorded: its nodes by number, and where tensors lie that it was given, with their bytes.

    It works on nothing else, but for memory that it took itself.  ``stays``: it works where it was recorded, whatever
    its words say: a collective tells other processes where its memory lies, or keeps that elsewhere.  ``results``:
    where tensors lie that it gave, with their bytes; ``allocated``: bytes of all blocks that it took from the pool,
    given back since or not (None: not known; too many where other threads took some).
    """

    nodes: range
    memory: tuple[tuple[int, int], ...]
    stays: bool = False
    results: tuple[tuple[int, int], ...] = ()
    allocated: int | None = None

    @classmethod
    def of(cls, nodes: range, tensors: Iterable[torch.Tensor], stays: bool = False) -> RecordedCall:
        """A call that was given these tensors."""
        return cls(nodes, places_of(tensors), stays)

    def works_on(self, address: int, nbytes: int) -> bool:
        """Whether memory may be that of a tensor it was given."""
        return any(begin < address + nbytes and address < begin + count for begin, count in self.memory)


class CallObserver(Protocol):
    """Who is told of library calls and copies while work is recorded: before each, with its tensors, and after it.

    ``stays``: the call works where it is recorded (``RecordedCall.stays``).  ``results``: tensors that it gave.
    """

    def begin(self, tensors: Sequence[torch.Tensor], stays: bool = False) -> None: ...

    def end(self, results: Sequence[torch.Tensor] = ()) -> None: ...


Replay = Callable[[Sequence[int], int], None]
"""``replay(addresses, stream)``: queue a recording over other memory."""


class Recording(abc.ABC):
    """Work that was recorded, ready to be replayed; ``calls`` are those library calls in it that are known."""

    calls: Sequence[RecordedCall] = ()

    @property
    @abc.abstractmethod
    def nodes(self) -> Sequence[RecordedNode]:
        """The work in the order in which it was recorded, with the arguments of its next replay."""

    def is_of_host(self, word: int) -> bool:
        """Whether a word of its arguments is an address of the host's memory, and so none made of the device's."""
        return False

    @abc.abstractmethod
    def patch(self, patches: Sequence[Patch]) -> None:
        """Change arguments for all later replays; a replay under way is not changed."""

    @abc.abstractmethod
    def replay(self, stream: int) -> None:
        """Queue all of it on a stream."""

    def why_not_launched(self, nodes: range) -> str:
        """Why some nodes cannot be launched by themselves (``GraphCapture.sequence``); empty where they can."""
        return "this device launches recordings as a whole"

    def replay_as(self, launch: Callable[[], object], stream: int) -> str:
        """Queue it with the grids and arguments of what ``launch`` launches: kernels of plans and copies of bytes.

        The launches of ``launch`` (this thread's, on the device that it was recorded on) are not queued themselves, nor
        are its copies by ``Device.byte_copier``:
        they are written over the nodes, the first over the first, and the recording is queued on the stream.  Gives why
        they are not the ones that were recorded, with other sizes and memory; nothing is queued then.  What ``launch``
        raises comes out, and the next replay writes all of it anew.  Calls of several threads follow one another.
        """
        return "this device's recordings keep the sizes that they were made with"

    def bind(self, arguments: Sequence[Sequence[AddressWord]], addresses: Sequence[int]) -> Replay:
        """A replay over other memory: number ``n`` of its addresses is that of ``arguments[n]``.

        ``addresses`` are those that the recording was made with.  Only nodes that hold an address which changed since
        the replay before are patched; a device whose patches can be made in native code overrides this.  Calls of
        several threads follow one another.  A recording is bound once, and then patched by nobody else.
        """
        current: list[int | None] = list(addresses)
        lock = Lock()

        def replay(addresses: Sequence[int], stream: int) -> None:
            with lock:
                changed = [n for n, address in enumerate(addresses) if address != current[n]]
                if changed:
                    current[:] = [None] * len(current)  # where patching fails, nothing is known
                    self.patch([Patch(w.node, w.offset, addresses[n] + w.delta) for n in changed for w in arguments[n]])
                    current[:] = addresses
                self.replay(stream)

        return replay


class MemoryPool(abc.ABC):
    """Memory that recordings on one device share, apart from what torch's allocator hands to everybody else.

    ``granule``: bytes that its blocks are multiples of.
    """

    granule: int = 1

    @abc.abstractmethod
    def allocating(self) -> AbstractContextManager[None]:
        """Within it, what this thread allocates on the device comes from the pool; frees go back to it at any time."""

    @abc.abstractmethod
    def checkpoint(self) -> Any:
        """Which blocks are in use now."""

    @abc.abstractmethod
    def bytes_in_use(self, checkpoint: Any) -> int:
        """Bytes of the blocks that were in use at a checkpoint."""

    @abc.abstractmethod
    def restore(self, checkpoint: Any, dead: Sequence[int]) -> None:
        """Make the bookkeeping what it was, less the blocks that begin at the addresses ``dead``.

        Contents of memory are not touched.  Tensors allocated from the pool must be gone; those made by ``tensor_at``
        own no block, and stay as they are.
        """

    @abc.abstractmethod
    def invalidate(self, storage: torch.UntypedStorage, message: str) -> None:
        """From now on, whoever asks where a storage of ``tensor_at`` lies gets a ``RuntimeError`` with this text."""

    @abc.abstractmethod
    def segments(self) -> Sequence[range]:
        """All memory that the pool holds.  What it hands out begins where a free range of it does."""

    @property
    @abc.abstractmethod
    def reserved_bytes(self) -> int:
        """Memory that the pool holds, in use or not."""


@attrs.frozen
class HeldBlock:
    """A block of so many bytes that is taken from a pool before a library call, and given back after it.

    ``is_hole``: it is given back before the call, when all others have been taken.
    """

    nbytes: int
    is_hole: bool = False


HeldBack = Mapping[int, Sequence[HeldBlock]]
"""What is held back before a library call, by its number among those of a recording."""


class GraphCapture(abc.ABC):
    """How a device records what is launched on its current stream."""

    @abc.abstractmethod
    def pool(self, index: int) -> MemoryPool:
        """A new pool on device ``index``, which lives as long as it or a recording in it does."""

    def is_recording(self, index: int) -> bool:
        """Whether what this thread launches on a device now is recorded, by whomever: nothing can be begun then."""
        return False

    def observer(self) -> CallObserver | None:
        """Who is told of the library calls of work that is recorded to find addresses; None: nobody.

        Kernels are handed structures whose unused parts hold what calls before left on the host's stack, so that words
        differ from recording to recording that hold no address of what moved.  An observer may clear the stack before a
        call, and note its nodes (``Recording.calls``), which says what such a word can depend on at most.
        """
        return None

    def sequence(
        self,
        index: int,
        parts: Sequence[Segment | KnownCall],
        entries: int,
        aligned: Sequence[int] = (),
        stored: Sequence[int] = (),
    ) -> Segment:
        """What launches all ``parts`` on device ``index`` in one call, one behind the other.

        ``entries``: how many the table of slots has; ``aligned``: those of them that must be multiples of 16 bytes, as
        they were when the calls were recorded; ``stored``: those that are written.  Where a part cannot be launched
        with the tables as they are, nothing is, as in a ``Segment``.  Asked for calls of which the recording says that
        they can be launched (``Recording.why_not_launched``), and for segments of this device.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def record(
        self,
        index: int,
        run: Callable[[], Any],
        pool: MemoryPool | None = None,
        *,
        library_calls: bool = True,
        held_back: HeldBack | None = None,
    ) -> Recording:
        """Record what ``run`` launches on device ``index``, which is queued for nothing; ``run`` itself runs once.

        What ``run`` allocates comes from ``pool`` (None: one of the recording's own) and stays there for as long as the
        recording lives, whoever else is handed the same addresses later.  Random number generators of the device go on
        with every replay as they would with a call.  Where ``run`` raises or does what cannot be recorded, nothing is
        left behind: the error comes out, and the device can be used as before.

        ``library_calls``: False where ``run`` launches kernels and nothing else, so that what libraries keep for a
        stream (workspaces) need not be made ready, which would reserve memory.  ``held_back``, which a device with an
        ``observer`` takes: memory that is taken from the pool before library calls, so that what they allocate lies
        elsewhere.
        """


def tensor_at(
    address: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor over memory that it does not own."""
    nbytes = extent(shape, stride) * dtype.itemsize
    storage = storage_at(address, device, nbytes)
    return torch.empty(0, dtype=dtype, device=device).set_(storage, 0, shape, stride)


def places_of(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Where tensors begin, and how many bytes it is from the first of each to its last."""
    return tuple((t.data_ptr(), extent(t.shape, t.stride()) * t.dtype.itemsize) for t in tensors)


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor, gaps included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


@attrs.frozen
class FoundAddresses:
    """What comparing two recordings says about memory that moved, by its key.

    ``words``: all words that hold addresses in it.  ``unclear``: why its words are not known; it has to lie at a replay
    where it lay when it was recorded.
    """

    words: dict[Hashable, tuple[AddressWord, ...]]
    unclear: dict[Hashable, str]


def address_words(
    first: Recording, second: Recording, moved: Mapping[Any, Moved], again: Recording | None = None
) -> FoundAddresses:
    """Where addresses lie in the arguments of a call that was recorded twice.

    How far memory moved tells which it is, so that no two may move by the same number of bytes; which number a word
    holds is told by its bits in both, so that no two may have the same.  Raises ``ValueError`` where they do, where
    something did not move, and where the recordings are not of the same work.

    ``again`` was recorded as the first was, over the very same memory: words that differ between the two are what
    kernels were handed uninitialised (padding, unused ends of arrays), and hold no addresses.  So are words that differ
    and hold an address of the host's memory once: what calls before left on its stack.

    A word that differs otherwise may be such padding, too, or be made of addresses in a way that is not known here.
    Where it belongs to a library call (``first.calls``), what that call works on is unclear; else all that moved is.
    So is what a call works on that stays where it was recorded.
    """
    distances, numbers = _told_apart(moved)
    noise = set() if again is None else differences(first, again)
    words: dict[Any, list[AddressWord]] = {key: [] for key in moved}
    unclear: dict[Any, str] = {}
    nodes, others = first.nodes, second.nodes
    for number, node in enumerate(nodes):
        if node.kind == "other" and not node.arguments:
            reason = f"what {node.name} (node {number}) works on is not known"
            unclear |= dict.fromkeys(_suspects(first, number, moved), reason)
    for number, offset in sorted(differences(first, second) - noise):
        node = nodes[number]
        before, after = node.words[offset // WORD], others[number].words[offset // WORD]
        key = numbers.get((before, after), distances.get(after - before))
        where = f"bytes {offset} of {node.name} (node {number})"
        if key is None:
            if first.is_of_host(before) or second.is_of_host(after):
                continue
            reason = f"{where} were {before:#x}, then {after:#x}: no address that moved"
            unclear |= dict.fromkeys(_suspects(first, number, moved), reason)
        elif node.kind == "other":
            unclear[key] = f"{where} hold its address, and cannot be patched"
        elif not moved[key].first <= before < moved[key].first + max(1, moved[key].nbytes):
            unclear[key] = f"{where} moved with it and lie outside of it"
        else:
            words[key].append(AddressWord(number, offset, before - moved[key].first))
    unclear |= _of_calls_that_stay(first, moved)
    return FoundAddresses({key: tuple(w) for key, w in words.items() if key not in unclear}, unclear)


def _of_calls_that_stay(first: Recording, moved: Mapping[Any, Moved]) -> dict[Any, str]:
    """What calls work on that stay where they were recorded, with the reason."""
    memory = {key: m for key, m in moved.items() if not m.is_number}
    return {
        key: "a collective works on it, which stays where it was recorded"
        for call in first.calls
        if call.stays
        for key, m in memory.items()
        if call.works_on(m.first, max(1, m.nbytes))
    }


def _told_apart(moved: Mapping[Any, Moved]) -> tuple[dict[int, Any], dict[tuple[int, int], Any]]:
    """Keys of what moved by how far it did, and those of numbers by what they were in both recordings."""
    distances = {m.second - m.first: key for key, m in moved.items() if not m.is_number}
    numbers = {(m.first, m.second): key for key, m in moved.items() if m.is_number}
    if len(distances) + len(numbers) != len(moved) or any(m.first == m.second for m in moved.values()):
        raise ValueError("two of what moved lie equally far from where they were, or one did not move")
    return distances, numbers


def _suspects(first: Recording, number: int, moved: Mapping[Any, Moved]) -> Iterator[Any]:
    """What the words of a node may depend on."""
    call = next((c for c in first.calls if number in c.nodes), None)
    return (k for k, m in moved.items() if call is None or m.is_number or call.works_on(m.first, max(1, m.nbytes)))


def differences(first: Recording, second: Recording) -> set[tuple[int, int]]:
    """Words, by node and offset, that two recordings of the same work differ in."""
    nodes, others = first.nodes, second.nodes
    _check_same_work(nodes, others)
    return {
        (number, place * WORD)
        for number, (one, other) in enumerate(zip(nodes, others, strict=True))
        if one.arguments != other.arguments
        for place, (before, after) in enumerate(zip(one.words, other.words, strict=True))
        if before != after
    }


def _check_same_work(first: Sequence[RecordedNode], second: Sequence[RecordedNode]) -> None:
    if len(first) != len(second):
        raise ValueError(f"recordings of {len(first)} and {len(second)} nodes are not of the same work")
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        if (one.kind, one.name, len(one.arguments)) != (other.kind, other.name, len(other.arguments)):
            raise ValueError(
                f"node {number} is {one.kind} {one.name} in one recording, {other.kind} {other.name} in the other"
            )
