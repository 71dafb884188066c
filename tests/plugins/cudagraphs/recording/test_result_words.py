"""Words of results of library calls: found where all that moved is theirs, and left alone wherever there is a doubt."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
import pytest

from turret.hooks.graph_capture import AddressWord, Patch, RecordedCall, RecordedNode, Recording, WorkKind
from turret.plugins.cudagraphs.recording.result_words import MovedResult, result_words, why_not_fresh

POOL = range(1 << 20, 1 << 21)
R, BEFORE = POOL.start + 4096, POOL.start
"""Where a result lies, and what its call is given."""
NBYTES = 512


class Made(Recording):
    """Nodes of words; what is below 4096 is an address of the host."""

    def __init__(self, nodes: Sequence[RecordedNode], calls: Sequence[RecordedCall]) -> None:
        self._nodes, self.calls = tuple(nodes), tuple(calls)

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        return self._nodes

    def is_of_host(self, word: int) -> bool:
        return 0 < word < 4096

    def patch(self, patches: Sequence[Patch]) -> None:
        raise NotImplementedError

    def replay(self, stream: int) -> None:
        raise NotImplementedError


class Pool:
    granule = 256

    def segments(self) -> list[range]:
        return [POOL]


def node(*words: int, kind: WorkKind = "kernel") -> RecordedNode:
    return RecordedNode(kind, kind, struct.pack(f"<{len(words)}Q", *words))


CALL = RecordedCall(range(1), ((BEFORE, 256),), results=((R, NBYTES),), allocated=NBYTES)
RESULT = MovedResult(R, (R + 1024, R + 8192), NBYTES, 0)


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ((CALL,), ""),
        ((), "which nodes"),
        ((attrs.evolve(CALL, stays=True),), "a collective"),
        ((CALL, RecordedCall(range(1, 2), ((R + 256, 8),), stays=True)), "a collective"),
        ((CALL, RecordedCall(range(1, 2), ((BEFORE, 8),), stays=True)), ""),
        ((attrs.evolve(CALL, results=()),), "no fresh memory"),
        ((attrs.evolve(CALL, memory=((R + 256, 8),)),), "no fresh memory"),
        ((attrs.evolve(CALL, results=((R, NBYTES), (R + 256, 8))),), "shares memory"),
        ((attrs.evolve(CALL, allocated=None),), "is not known"),
        ((attrs.evolve(CALL, allocated=2 * NBYTES),), ""),
        ((attrs.evolve(CALL, allocated=2 * NBYTES + 256),), "works in 768 bytes more"),
    ],
)
def test_what_is_no_fresh_memory_of_its_call_is_told(calls: tuple, reason: str) -> None:
    found = why_not_fresh(RESULT, calls, Pool.granule)
    assert reason in found if reason else not found, found


def compared(*words: tuple[int, int, int, int], of_call: bool = True, further: Sequence[RecordedNode] = ()) -> tuple:
    """The words of a result, and why they are unclear, where a later node has these words beside another.

    Of each word there is what it was in the recording, in two others, and when it was recorded again.
    """
    calls = [CALL, RecordedCall(range(1, 2), ((BEFORE, 8),))]
    calls += [RecordedCall(range(2, 3), ((R, 8),))] if of_call else []
    rows = [[node(R), node(BEFORE), node(BEFORE, *(w[k] for w in words)), *further] for k in (0, 1, 2, 3)]
    for row, at in zip(rows, (R, *RESULT.others, R), strict=True):
        row[0] = node(at)
    first, one, two, again = (Made(row, calls) for row in rows)
    found = result_words(first, [one, two], {"r": RESULT}, again, Pool())
    return found.words.get("r"), found.unclear.get("r", "")


def moved(word: int) -> tuple[int, int, int, int]:
    return word, word + 1024, word + 8192, word


def test_words_that_moved_along_and_lie_within_are_addresses() -> None:
    words, unclear = compared(moved(R), moved(R + 504), (7, 7, 7, 7), (BEFORE, BEFORE + 64, BEFORE + 128, BEFORE))
    assert not unclear and words == (AddressWord(0, 0), AddressWord(2, 8), AddressWord(2, 16, 504))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (moved(R + NBYTES), "lie outside of it"),
        (moved(R - 8), "lie outside of it"),
        ((R, R + 1024, R + 1024, R), "did not move with it"),
        ((R, R, R, R), "did not move with it"),
        ((R, R + 1024, R + 8192, R + 1), "did not move with it"),
        ((R ^ 0x5A5A5A5A5A5A, 1 << 44, 1 << 45, R ^ 0x5A5A5A5A5A5A), "no addresses of the pool"),
        ((BEFORE, R + 1032, BEFORE, BEFORE), "then one of it"),
    ],
)
def test_a_word_that_is_not_understood_leaves_the_result_where_it_is(word: tuple, reason: str) -> None:
    words, unclear = compared(word)
    assert words is None and reason in unclear, unclear


def test_words_of_kernels_of_plans_beyond_the_end_are_others() -> None:
    assert compared(moved(R + NBYTES), moved(R), of_call=False)[0] == (AddressWord(0, 0), AddressWord(2, 16))


def test_words_that_differ_without_a_cause_are_noise_and_addresses_of_the_host_none() -> None:
    assert compared((1 << 50, 1 << 51, 1 << 52, 1 << 53), (100, 200, 300, 100))[0] == (AddressWord(0, 0),)


@pytest.mark.parametrize(
    "further", [RecordedNode("other", "a callback"), node(64, R, kind="copy"), node(R, kind="other")]
)
def test_work_that_cannot_be_seen_or_patched_leaves_the_result_where_it_is(further: RecordedNode) -> None:
    words, unclear = compared(further=[further])
    assert words is None and unclear


def test_two_results_that_moved_alike_are_not_told_apart_where_a_call_is_given_both() -> None:
    other = MovedResult(R + NBYTES, tuple(at + NBYTES for at in RESULT.others), NBYTES, 0)
    call = attrs.evolve(CALL, results=((R, NBYTES), (R + NBYTES, NBYTES)))
    for calls, told_apart in (([call, RecordedCall(range(1, 2), ((R, 8), (R + NBYTES, 8)))], False), ([call], True)):
        rows = [[node(0 if told_apart else at, 0), node(at, at + NBYTES)] for at in (R, *RESULT.others, R)]
        first, one, two, again = (Made(row, calls) for row in rows)
        found = result_words(first, [one, two], {"r": RESULT, "s": other}, again, Pool())
        assert set(found.words) == ({"r", "s"} if told_apart else set()), found


def test_recordings_of_other_work_are_refused() -> None:
    first, other = (Made([node(R), node(R)][:n], [CALL]) for n in (1, 2))
    with pytest.raises(ValueError, match="not of the same work"):
        result_words(first, [other], {"r": attrs.evolve(RESULT, others=(R + 8,))}, first, Pool())
    apart = Made([node(R)], [attrs.evolve(CALL, nodes=range(0))])
    with pytest.raises(ValueError, match="other nodes"):
        result_words(first, [apart], {"r": attrs.evolve(RESULT, others=(R + 8,))}, first, Pool())
