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

from turret.hooks.graph_capture import AddressWord, MemoryPool, Moved, Recording, address_words, tensor_at
from turret.plugins.cudagraphs.work import Layout, RecordingDevice, float_bits
from turret.torch_compat.operators.ops import neg_view

GRANULE = 512
"""Bytes: memory is moved by multiples of it, so that it is aligned as it was."""

_TAKEN, _LARGEST_TAKEN = 32, 1024
"""How many pieces of each size, and up to how many bytes, are taken from the host's allocator to move what comes next:
more than it keeps at hand for a thread (7 pieces, glibc's ``tcache_count``)."""

_ATTEMPTS = 4
"""Recordings of a call that are compared before all that could move is pinned."""

Item = tuple[str, int]
"""An input or a buffer of a call: ``("input", 3)``."""

Run = Callable[[Mapping[Item, Any]], Any]
"""Runs the call with some of its memory, or of its floats, replaced."""


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
    bits; ``pinned``: those that may not.
    """

    recording: Recording
    words: dict[Item, tuple[AddressWord, ...]]
    pinned: dict[Item, Pinned]


class Recorder:
    """Records calls in one pool, each from the same state of its bookkeeping."""

    def __init__(
        self, recording_device: RecordingDevice, pool: MemoryPool, state: Any, dead: Sequence[int] = ()
    ) -> None:
        self._recording_device, self._pool, self._state, self._dead = recording_device, pool, state, tuple(dead)

    def record(
        self,
        run: Run,
        items: Mapping[Item, torch.Tensor],
        pinned: Mapping[Item, str],
        numbers: Numbers | None = None,
    ) -> tuple[Recorded, Any]:
        """Record ``run`` over ``items``; ``pinned`` says of which it is known that they cannot move, and why.

        The recording comes with what the call gave, whose tensors lie in the pool.  Raises ``NotRecordable`` where the
        words that hold one of ``numbers`` are not understood.
        """
        pinned = dict(pinned)
        numbers = numbers or Numbers({}, lambda given: ())
        for attempt in range(_ATTEMPTS):
            free = {key: t for key, t in items.items() if key not in pinned}
            held = {key: Layout.of(items[key]) for key in pinned}
            made, words, unclear = self._attempt(run, free, held, numbers)
            if not unclear:
                memory = {k: Pinned(made.places[k], held[k], pinned[k]) for k in held}
                return Recorded(made.recording, words, memory), made.result
            # What was unclear because the pool grew meanwhile is clear at the second attempt.
            if attempt:
                pinned |= {key: reason for key, reason in unclear.items() if key[0] != "float"}
            if attempt == _ATTEMPTS - 2:
                pinned |= {key: "its recordings cannot be told apart" for key in free if key not in pinned}
            del made
        raise NotRecordable(f"it takes floats, and where they are is not known: {next(iter(unclear.values()))}")

    def _attempt(
        self, run: Run, free: Mapping[Item, torch.Tensor], held: Mapping[Item, Layout], numbers: Numbers
    ) -> tuple[_Made, dict[Item, tuple[AddressWord, ...]], dict[Item, str]]:
        """The recording over the call's own memory, the words found by two others, and why some were not."""
        keys = [*free, *numbers.bits({})]
        if not keys:
            return self._made(run, free, held), {}, {}
        others: list[tuple[Recording, dict[Item, Moved]]] = []
        failed = ""
        try:
            with other_host_memory():
                again = self._made(run, {key: _alias(tensor) for key, tensor in free.items()}, held).recording
            for turn, (moved, tensors) in enumerate(_elsewhere(self._recording_device, free)):
                other, changed = numbers.others(turn)
                others.append((self._made(run, {**tensors, **other}, held).recording, {**moved, **changed}))
        except Exception as error:
            failed = f"it cannot be recorded over other memory ({type(error).__name__}: {error})"
        made = self._made(run, free, held)
        if failed:
            return made, {}, dict.fromkeys(keys, failed)
        return made, *_words(made.recording, again, others, keys)

    def _made(self, run: Run, given: Mapping[Item, Any], held: Mapping[Item, Layout]) -> _Made:
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
        recording = recording_device.capture.record(recording_device.index, lambda: results.append(run(replaced)), pool)
        return _Made(recording, places, results[0])


@attrs.frozen(eq=False)
class _Made:
    recording: Recording
    places: dict[Item, int]
    result: Any


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
