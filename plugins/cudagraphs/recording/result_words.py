"""Which words of a recording hold the address of a library call's result, so that the result may lie elsewhere.

A call that allocates its result in a pool has it where the pool's bookkeeping says.  Recorded once more with memory
held back from the pool before that call (``GraphCapture.record``), the result lies elsewhere: the words of the call's
nodes, and of later ones, that lie within the result and moved as it did hold its address.  From the call on the result
lives as long as the recording, so that nothing else has an address within it but what the call itself worked in before
the result was allocated.  That lies within the result's memory, too, wherever that is: allocators hand out the
beginnings of free ranges, so that all the call took besides its results would have to be larger than the result.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from turret.hooks.graph_capture import (
    WORD,
    AddressWord,
    FoundAddresses,
    MemoryPool,
    RecordedCall,
    RecordedNode,
    Recording,
    differences,
)


@attrs.frozen
class MovedResult:
    """A result that lay elsewhere in other recordings: where it began in the first and in each other, and its bytes.

    ``call`` is the number of its call among ``Recording.calls``; the result lives to the end of the recording.
    """

    first: int
    others: tuple[int, ...]
    nbytes: int
    call: int

    def follows(self, before: int, after: Sequence[int]) -> bool:
        """Whether a word moved as it did, each time."""
        return all(word - before == other - self.first for word, other in zip(after, self.others, strict=True))

    def holds(self, address: int) -> bool:
        return self.first <= address < self.first + self.nbytes


def why_not_fresh(result: MovedResult, calls: Sequence[RecordedCall], granule: int) -> str:
    """Why memory is not that of a fresh result of its call and of nothing larger before it; empty where it is.

    ``granule``: of the pool that it lies in.
    """
    if result.call >= len(calls):
        return "which nodes its library call has is not known"
    call = calls[result.call]
    if call.stays or any(c.stays and c.works_on(result.first, result.nbytes) for c in calls[result.call :]):
        return "a collective works on it, which stays where it was recorded"
    if (result.first, result.nbytes) not in call.results or call.works_on(result.first, result.nbytes):
        return "it is no fresh memory of its library call"
    if sum(begin < result.first + result.nbytes and result.first < begin + count for begin, count in call.results) > 1:
        return "it shares memory with another result"
    if call.allocated is None:
        return "how much memory its library call takes is not known"
    further = call.allocated - sum(-(-count // granule) * granule for _, count in call.results)
    if further > result.nbytes:
        return f"its library call works in {further} bytes more, and it has {result.nbytes}"
    return ""


def result_words(
    first: Recording, others: Sequence[Recording], moved: Mapping[Any, MovedResult], again: Recording, pool: MemoryPool
) -> FoundAddresses:
    """Where addresses of results lie in a recording; ``others`` are over the same inputs, and differ in the pool.

    Of no result ``why_not_fresh`` says anything.  ``again`` was recorded as the first was (``address_words``).  Unclear
    is a result of which some word may be another one's, or may be made of its address in a way that is not known here.
    Work that belongs to no library call is handed addresses of tensors as they are, and never those beyond their end.
    Raises ``ValueError`` where the recordings are not of the same work.
    """
    if any([c.nodes for c in first.calls] != [c.nodes for c in other.calls] for other in others):
        raise ValueError("the same library calls are other nodes in another recording")
    noise = differences(first, again)
    for other in others:
        differences(first, other)  # raises where they are not of the same work
    return _Comparison(first, others, moved, noise, pool.segments()).found()


class _Comparison:
    def __init__(
        self,
        first: Recording,
        others: Sequence[Recording],
        moved: Mapping[Any, MovedResult],
        noise: set[tuple[int, int]],
        pool: Sequence[range],
    ) -> None:
        self._first, self._others, self._moved = first, others, moved
        self._noise, self._pool = noise, pool
        self._words: dict[Any, list[AddressWord]] = {key: [] for key in moved}
        self._unclear: dict[Hashable, str] = {}
        self._sorted = sorted(((result.first, key) for key, result in moved.items()), key=lambda pair: pair[0])
        self._starts = [start for start, _ in self._sorted]
        ends = [result.first + result.nbytes for result in moved.values()]
        self._span = range(min(self._starts, default=0), max(ends, default=0))
        for key, result in moved.items():
            if result.first in result.others:
                self._unclear[key] = "it lies in the same place when memory is held back"

    def found(self) -> FoundAddresses:
        calls = {number: call for call in self._first.calls for number in call.nodes}
        each = zip(self._first.nodes, *(other.nodes for other in self._others), strict=True)
        for number, (node, *elsewhere) in enumerate(each):
            call = calls.get(number)
            if (node.kind == "other" and not node.arguments) or self._is_from_host(node):
                self._refuse(number, call, f"what {node.name} (node {number}) works on is not known")
            for offset, before, after in self._noticed(node, elsewhere):
                self._look_at(number, node, offset, before, after, call)
        for key, words in self._words.items():
            if not words:
                self._unclear.setdefault(key, "nothing is handed its address")
        return FoundAddresses({k: tuple(w) for k, w in self._words.items() if k not in self._unclear}, self._unclear)

    def _noticed(
        self, node: RecordedNode, elsewhere: Sequence[RecordedNode]
    ) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Words of a node that may say something of results: their offsets, and what they are in each recording."""
        for place, words in enumerate(zip(node.words, *(other.words for other in elsewhere), strict=True)):
            if words[0] in self._span or words.count(words[0]) != len(words):
                yield place * WORD, words[0], words[1:]

    def _is_from_host(self, node: RecordedNode) -> bool:
        """Whether it copies from the host, or to it: there may be addresses among what it copies."""
        return node.kind == "copy" and any(map(self._first.is_of_host, node.words))

    def _look_at(
        self, number: int, node: RecordedNode, offset: int, before: int, after: Sequence[int], call: RecordedCall | None
    ) -> None:
        is_noise = (number, offset) in self._noise
        where = f"bytes {offset} of {node.name} (node {number})"
        key = self._result_at(before, number)
        if key is None:
            if not is_noise and any(word != before for word in after):
                self._of_others(number, call, before, after, where)
        elif self._moved[key].follows(before, after) and not is_noise and node.kind != "other":
            for other in self._suspects(number, call) if call is not None else ():
                if other != key and self._moved[other].follows(before, after):
                    self._unclear |= dict.fromkeys((key, other), f"{where} moved with two results of library calls")
            self._words[key].append(AddressWord(number, offset, before - self._moved[key].first))
        else:
            self._unclear[key] = f"{where} lie within it and did not move with it, or cannot be patched"

    def _begin(self, key: Hashable) -> int:
        """The first node that may work on a result."""
        return self._first.calls[self._moved[key].call].nodes.start

    def _result_at(self, address: int, number: int) -> Hashable | None:
        """The result that an address lies in, as a node sees it."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        _, key = self._sorted[place]
        return key if self._moved[key].holds(address) and number >= self._begin(key) else None

    def _suspects(self, number: int, call: RecordedCall | None) -> Iterator[Hashable]:
        """Results that a node may work on."""
        for key, result in self._moved.items():
            own = call is None or call is self._first.calls[result.call] or call.works_on(result.first, result.nbytes)
            if own and number >= self._begin(key):
                yield key

    def _refuse(self, number: int, call: RecordedCall | None, reason: str) -> None:
        for key in self._suspects(number, call):
            self._unclear[key] = reason

    def _of_others(self, number: int, call: RecordedCall | None, before: int, after: Sequence[int], where: str) -> None:
        """A word that changed and lies in no result: it is something else's in the pool, or not understood."""
        if self._first.is_of_host(before) or any(self._first.is_of_host(word) for word in after):
            return
        if not all(any(word in segment for segment in self._pool) for word in (before, *after)):
            words = ", then ".join(f"{word:#x}" for word in (before, *after))
            self._refuse(number, call, f"{where} were {words}: no addresses of the pool")
            return
        for key in self._suspects(number, call):
            result = self._moved[key]
            if any(start <= word < start + result.nbytes for word, start in zip(after, result.others, strict=True)):
                self._unclear[key] = f"{where} were an address elsewhere, then one of it"
            elif call is not None and result.follows(before, after):  # the end of it, say
                self._unclear[key] = f"{where} moved with it and lie outside of it"
