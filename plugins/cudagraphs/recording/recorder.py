"""Recording a call so that a replay can run over other memory: which words of its arguments are addresses of what.

The call is recorded four times: over its own memory, to see which words are noise, twice over memory that lies
elsewhere, to see which words follow, and at last over its own.  What has words that are not understood is *pinned*: it
lies in the pool, where it lay when it was recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import torch

from turret.hooks.graph_capture import (
    AddressWord,
    HeldBack,
    HeldBlock,
    MemoryPool,
    Moved,
    Recording,
    address_words,
    tensor_at,
)
from turret.plugins.cudagraphs.recording.result_words import MovedResult, result_words, why_not_fresh
from turret.plugins.cudagraphs.work import Layout, RecordingDevice, float_bits
from turret.torch_compat.operators.ops import neg_view

GRANULE = 512
"""Bytes: memory is moved by multiples of it, so that it is aligned as it was."""

_TAKEN, _LARGEST_TAKEN = 32, 1024
"""How many pieces of each size, and up to how many bytes, are taken from the host's allocator to move what comes next:
more than it keeps at hand for a thread (7 pieces, glibc's ``tcache_count``)."""

_ALIKE = "its recordings cannot be told apart"

_ATTEMPTS = 6
"""How often recordings of a call are compared, each time with more of it pinned or copied; at last, all of it is."""

_GROWTHS = 4
"""How often they are made anew, at most, because their pool had to grow."""

Item = tuple[str, int]
"""An input or a buffer of a call: ``("input", 3)``."""

Words = dict[Item, tuple[AddressWord, ...]]
"""For each item the words of a recording that hold its address."""

Run = Callable[[Mapping[Item, Any]], Any]
"""Runs the call with some of its memory, or of its floats, replaced."""

_LARGE = (1 << 20) + 512
"""Bytes of a block that allocators take from where they take large ones."""


class NotRecordable(Exception):
    """A call that cannot be recorded; the text says why."""


@attrs.frozen
class Numbers:
    """The floats of a call: inputs by item, and what of all floats (computed ones too) kernels are handed.

    ``of(given)`` are those floats where some inputs are others.
    """

    inputs: Mapping[Item, float]
    of: Callable[[Mapping[Item, float]], Sequence[float]]

    def bits(self, given: Mapping[Item, float]) -> dict[Item, int]:
        """The words that kernels are handed, by item."""
        return {("float", n): float_bits(value) for n, value in enumerate(self.of(given))}

    def others(self, turn: int) -> tuple[dict[Item, float], dict[Item, Moved]]:
        """Other inputs, which stay others where they are rounded to fewer bits, and how the words differ then."""
        factors = [1.25 + 0.0625 * turn + 0.5**10 * n for n in range(len(self.inputs))]
        other = {key: (x or 1.0) * factor for (key, x), factor in zip(self.inputs.items(), factors, strict=True)}
        before, after = self.bits({}), self.bits(other)
        return other, {key: Moved(word, after[key], 1, is_number=True) for key, word in before.items()}


@attrs.frozen(eq=False)
class Pinned:
    """Memory in the pool that stands for an input or a buffer at each replay."""

    address: int
    layout: Layout
    reason: str


@attrs.frozen(eq=False)
class Recorded:
    """A recording, and how it is told where its memory lies.

    ``words``: for each item that may move, the words that hold its address, and for each float those that hold its
    bits; ``pinned``: those that may not.  ``addresses``: where each item lay.  ``copied``: buffers that the recording
    copies what a library call allocates to, with the reason; ``returned``: those that the call writes to itself.
    ``is_typical``: other sizes of the call would have the same results copied; not where memory was short, say.
    """

    recording: Recording
    words: dict[Item, tuple[AddressWord, ...]]
    pinned: dict[Item, Pinned]
    addresses: dict[Item, int] = attrs.field(factory=dict)
    copied: dict[Item, str] = attrs.field(factory=dict)
    returned: frozenset[Item] = frozenset()
    is_typical: bool = True


@attrs.frozen
class ResultPlace:
    """Where a result lies that a library call allocated; ``is_whole``: it is all of its storage."""

    address: int
    nbytes: int
    is_whole: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> ResultPlace:
        nbytes = Layout.of(tensor).nbytes
        return cls(
            tensor.data_ptr(), nbytes, (0, nbytes) == (tensor.storage_offset(), tensor.untyped_storage().nbytes())
        )


@attrs.frozen
class AllocatingCall:
    """The number of a library call among those of a recording, and the bytes of a result of it."""

    number: int
    nbytes: int


@attrs.frozen(eq=False)
class Returned:
    """Buffers that library calls allocate: where they have none, running the call gives their ``ResultPlace`` in turn.

    ``calls``: for each, which call allocates it; ``make``: gives a buffer for one; ``prepare``: is told which have none
    before that is recorded.
    """

    calls: Mapping[Item, AllocatingCall]
    make: Callable[[Item], torch.Tensor]
    prepare: Callable[[frozenset[Item]], None]


class Recorder:
    """Records calls in one pool, each from the same state of its bookkeeping."""

    def __init__(
        self, recording_device: RecordingDevice, pool: MemoryPool, state: Any, dead: Sequence[int] = ()
    ) -> None:
        self._recording_device, self._pool, self._state, self._dead = recording_device, pool, state, tuple(dead)
        self._is_typical = True

    def record(
        self,
        run: Run,
        items: Mapping[Item, torch.Tensor],
        pinned: Mapping[Item, str],
        numbers: Numbers | None = None,
        returned: Returned | None = None,
    ) -> tuple[Recorded, Any]:
        """Record ``run`` over ``items``; ``pinned`` says of which it is known that they cannot move, and why.

        Those of ``returned`` are no items: they become some where words of theirs are not understood.

        The recording comes with what the call gave, whose tensors lie in the pool.  Raises ``NotRecordable`` where the
        words that hold one of ``numbers`` are not understood.
        """
        numbers = numbers or Numbers({}, lambda given: ())
        returned = returned or Returned({}, lambda item: torch.empty(0), lambda items: None)
        chosen = _Choice(dict(items), dict(pinned), dict(returned.calls))
        for attempt in range(_ATTEMPTS):
            returned.prepare(frozenset(chosen.calls))
            free, held = chosen.free, chosen.held
            made, words, unclear, refused = self._settled(run, free, held, numbers, chosen.calls)
            if not unclear and not refused:
                return attrs.evolve(chosen.recorded(made, words), is_typical=self._is_typical), made.result
            # What is unclear beside results that are no fresh memory may be clear once those are copied.
            if attempt:
                refused = {key: reason for key, reason in unclear.items() if key in chosen.calls} | refused
            if attempt == _ATTEMPTS - 2:
                refused = dict.fromkeys(chosen.calls, _ALIKE) | refused
                self._is_typical = False
            chosen.copy(refused, returned.make)
            if attempt:
                floats_and_copied = [key for key in unclear if key[0] == "float" or key in refused]
                chosen.pinned |= {key: reason for key, reason in unclear.items() if key not in floats_and_copied}
            if attempt == _ATTEMPTS - 2:
                chosen.pinned |= {key: _ALIKE for key in free if key not in chosen.pinned}
            del made
        raise NotRecordable(f"it takes floats, and where they are is not known: {next(iter(unclear.values()))}")

    def compared(
        self, run: Run, items: Mapping[Item, torch.Tensor], results: Mapping[Item, AllocatingCall]
    ) -> tuple[Recording, Words, dict[Item, str]]:
        """A recording of ``run`` over ``items``, the words that hold addresses in these and in ``results``, which calls
        of it allocate and whose places it gives, and why those of some are not known.

        ``items`` need not hold anything: what is recorded never runs.
        """
        made, words, unclear, refused = self._settled(run, items, {}, Numbers({}, lambda given: ()), results)
        return made.recording, words, unclear | refused

    def _settled(self, *of_the_call: Any) -> _Compared:
        """As ``_attempt``, made again for as long as the pool grows."""
        for _ in range(_GROWTHS - 1):
            compared = self._unless_grown(*of_the_call)
            if compared is not None:
                return compared
        self._is_typical = False
        return self._attempt(*of_the_call)

    def _unless_grown(self, *of_the_call: Any) -> _Compared | None:
        """As ``_attempt``; None where the pool grew, and some words are unclear.

        With more memory to choose from, the same work is done elsewhere: what it is handed is not understood then.
        """
        before = self._pool.segments()
        made, words, unclear, refused = self._attempt(*of_the_call)
        return None if unclear and self._pool.segments() != before else (made, words, unclear, refused)

    def _attempt(
        self,
        run: Run,
        free: Mapping[Item, torch.Tensor],
        held: Mapping[Item, Layout],
        numbers: Numbers,
        calls: Mapping[Item, AllocatingCall],
    ) -> _Compared:
        """The recording over the call's own memory, the words found by two others, and why some were not.

        Two more, with memory held back, tell the words of what ``calls`` of it allocate; at last comes for which of
        those no recording will, and why.
        """
        keys = [*free, *numbers.bits({})]
        if not keys and not calls:
            return self._made(run, free, held), {}, {}, {}
        others: list[tuple[Recording, dict[Item, Moved]]] = []
        apart = self._made_with_memory_held_back(run, free, held, calls)
        failed = ""
        try:
            with other_host_memory():
                again = self._made(run, {key: _alias(tensor) for key, tensor in free.items()}, held).recording
            for turn, (moved, tensors) in enumerate(_elsewhere(self._recording_device, free)):
                other, changed = numbers.others(turn)
                others.append((self._made(run, {**tensors, **other}, held).recording, {**moved, **changed}))
        except Exception as error:
            failed = f"it cannot be recorded over other memory ({type(error).__name__}: {error})"
            self._is_typical = False
        made = self._made(run, free, held)
        if failed:
            return made, {}, dict.fromkeys([*keys, *calls], failed), {}
        words, unclear = _words(made.recording, again, others, keys)
        results, refused = _moved(made, apart, calls, self._pool.granule)
        try:
            found = result_words(made.recording, [other.recording for other in apart], results, again, self._pool)
        except ValueError as error:
            return made, words, unclear | dict.fromkeys(results, str(error)), refused
        of_results = {cast(Item, key): found_words for key, found_words in found.words.items()}
        not_understood = {cast(Item, key): reason for key, reason in found.unclear.items()}
        return made, words | of_results, unclear | not_understood, refused

    def _made_with_memory_held_back(
        self,
        run: Run,
        free: Mapping[Item, torch.Tensor],
        held: Mapping[Item, Layout],
        calls: Mapping[Item, AllocatingCall],
    ) -> list[_Made]:
        """Two recordings in which what library calls allocate lies elsewhere.

        In the second there is a hole before them that one piece of memory fits into, so that those which follow one
        another in the first move by different distances.  None where they cannot be made: memory may be short.
        """
        made: list[_Made] = []
        for turn in range(2 if calls else 0):
            held_back: dict[int, list[HeldBlock]] = {}
            for call in calls.values():
                blocks = [HeldBlock(call.nbytes)]
                if turn:
                    blocks += [HeldBlock(call.nbytes, is_hole=True), HeldBlock(min(call.nbytes, _LARGE))]
                held_back.setdefault(call.number, []).extend(blocks)
            try:
                made.append(self._made(run, free, held, held_back))
            except Exception:
                self._is_typical = False
                return []
        return made

    def _made(
        self,
        run: Run,
        given: Mapping[Item, Any],
        held: Mapping[Item, Layout],
        held_back: HeldBack | None = None,
    ) -> _Made:
        """One recording, with memory in the pool for what is held there while it is made."""
        pool, recording_device = self._pool, self._recording_device
        pool.restore(self._state, self._dead)
        memory = {}
        with pool.allocating():
            for key, layout in held.items():
                memory[key] = recording_device.empty((max(1, layout.extent),), (1,), layout.dtype)
        places = {key: flat.data_ptr() for key, flat in memory.items()}
        views = {key: memory[key].as_strided(held[key].shape, held[key].stride) for key in held}
        results: list[Any] = []
        replaced = {**given, **views}
        capture, index = recording_device.capture, recording_device.index
        further: dict[str, Any] = {} if held_back is None else {"held_back": held_back}
        recording = capture.record(index, lambda: results.append(run(replaced)), pool, **further)
        return _Made(recording, places, results[0])


@attrs.define(eq=False)
class _Choice:
    """What is done with the memory of a call, as far as is known: what moves, what is pinned, what calls allocate."""

    items: dict[Item, torch.Tensor]
    pinned: dict[Item, str]
    calls: dict[Item, AllocatingCall]
    copied: dict[Item, str] = attrs.field(factory=dict)

    @property
    def free(self) -> dict[Item, torch.Tensor]:
        return {key: tensor for key, tensor in self.items.items() if key not in self.pinned}

    @property
    def held(self) -> dict[Item, Layout]:
        return {key: Layout.of(self.items[key]) for key in self.pinned}

    def copy(self, refused: Mapping[Item, str], make: Callable[[Item], torch.Tensor]) -> None:
        """From now on the recording copies these results to buffers."""
        for key, reason in refused.items():
            self.copied[key], self.items[key] = reason, make(key)
            del self.calls[key]

    def recorded(self, made: _Made, words: dict[Item, tuple[AddressWord, ...]]) -> Recorded:
        """A recording of which all words are understood."""
        memory = {key: Pinned(made.places[key], layout, self.pinned[key]) for key, layout in self.held.items()}
        addresses = {key: tensor.data_ptr() for key, tensor in self.items.items()}
        if self.calls:
            addresses |= {key: place.address for key, place in zip(self.calls, made.result, strict=True)}
        return Recorded(made.recording, words, memory, addresses, self.copied, frozenset(self.calls))


@attrs.frozen(eq=False)
class _Made:
    recording: Recording
    places: dict[Item, int]
    result: Any


_Compared = tuple[_Made, Words, dict[Item, str], dict[Item, str]]
"""A recording, what its words hold, why some are unclear, and which results no recording makes where they shall lie."""


def _elsewhere(
    recording_device: RecordingDevice, free: Mapping[Item, torch.Tensor]
) -> list[tuple[dict[Item, Moved], dict[Item, Any]]]:
    """Two other sets of places for memory, in which no two lie equally far from where they were, nor one as before.

    They begin apart and overlap: nothing is read or written there, and room for all of them would double what a call
    takes.
    """
    spans = {key: max(1, Layout.of(tensor).nbytes) for key, tensor in free.items()}
    room = -(-max(spans.values(), default=0) // GRANULE) + 6 * len(spans) + 6
    block = recording_device.empty((room * GRANULE,), (1,), torch.uint8)
    used: set[int] = {0}
    sets = []
    for order in (list(free), list(free)[::-1]):
        moved, tensors, cursor = {}, {}, block.data_ptr()
        for key in order:
            tensor, start = free[key], free[key].data_ptr()
            cursor += (start - cursor) % GRANULE
            while cursor - start in used:
                cursor += GRANULE
            used.add(cursor - start)
            moved[key] = Moved(start, cursor, spans[key])
            at = tensor_at(cursor, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            at.untyped_storage().owner = block  # type: ignore[attr-defined]
            tensors[key] = as_lazy(at, tensor)
            cursor += GRANULE
        sets.append((moved, tensors))
    return sets


@contextlib.contextmanager
def other_host_memory() -> Iterator[None]:
    """Within it, what libraries allocate on the host lies elsewhere.

    The ends of arrays that a kernel is handed are whatever was on the stack, pointers of the host among it, which would
    otherwise be the same whenever a call is recorded over the same memory.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    taken = [libc.malloc(size) for size in range(16, _LARGEST_TAKEN, 16) for _ in range(_TAKEN)]
    try:
        yield
    finally:
        for address in taken:
            libc.free(address)


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor over the same memory."""
    made = tensor_at(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return as_lazy(made, tensor)


def as_lazy(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is conjugated and negated as another one is, without its memory being touched."""
    made = made.conj() if like.is_conj() else made
    return neg_view(made) if like.is_neg() else made


def _words(
    recording: Recording,
    again: Recording,
    others: Sequence[tuple[Recording, dict[Item, Moved]]],
    free: Sequence[Item],
) -> tuple[dict[Item, tuple[AddressWord, ...]], dict[Item, str]]:
    """Words that two comparisons agree on, and reasons for the rest."""
    try:
        (one, two) = (address_words(recording, other, moved, again) for other, moved in others)
    except ValueError as error:
        return {}, dict.fromkeys(free, str(error))
    unclear = {cast(Item, key): str(reason) for key, reason in {**two.unclear, **one.unclear}.items()}
    for key in free:
        if key not in unclear and one.words[key] != two.words[key]:
            unclear[key] = "a third recording has its address in other words"
    return {cast(Item, key): words for key, words in one.words.items()}, unclear


def _moved(
    made: _Made, apart: Sequence[_Made], calls: Mapping[Item, AllocatingCall], granule: int
) -> tuple[dict[Item, MovedResult], dict[Item, str]]:
    """Where results lay in each recording, and which cannot be told from other memory, with the reason."""
    if not apart:
        return {}, dict.fromkeys(calls, "it cannot be recorded with memory held back")
    moved: dict[Item, MovedResult] = {}
    refused: dict[Item, str] = {}
    for (key, call), place, *elsewhere in zip(calls.items(), made.result, *(o.result for o in apart), strict=True):
        result = MovedResult(place.address, tuple(other.address for other in elsewhere), place.nbytes, call.number)
        whole = all(each.is_whole for each in (place, *elsewhere))
        reason = why_not_fresh(result, made.recording.calls, granule) if whole else "it is a part of a larger storage"
        if reason:
            refused[key] = reason
        else:
            moved[key] = result
    return moved, refused
