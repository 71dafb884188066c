"""Addresses in a recording are found by recording twice; anything else that differs is an error."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turret.hooks.graph_capture import (
    AddressWord,
    Moved,
    Patch,
    RecordedCall,
    RecordedNode,
    Recording,
    address_words,
    tensor_at,
)


class Fake(Recording):
    """Nodes of words; ``replayed`` lists the words of each replay."""

    def __init__(self, nodes: Sequence[Sequence[int]], kind: str = "kernel") -> None:
        self.words, self.kind, self.replayed = [list(words) for words in nodes], kind, []

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        return [RecordedNode(self.kind, f"k{len(w)}", struct.pack(f"<{len(w)}Q", *w)) for w in self.words]

    def patch(self, patches: Sequence[Patch]) -> None:
        for patch in patches:
            self.words[patch.node][patch.offset // 8] = patch.address

    def replay(self, stream: int) -> None:
        self.replayed.append([list(words) for words in self.words])


class AndMore(Fake):
    """The same, and a node of which nothing is known."""

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        return [*super().nodes, RecordedNode("other", "work of the host")]


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=5))
def test_patched_where_two_recordings_differ_a_third_comes_out(shape: list[list[int]]) -> None:
    """Words 0 to 2 stand for tensors that move, each its own way, 3 for the middle of one, others for what stays."""

    def recorded(turn: int) -> Fake:
        places = [(turn << 40) + (turn * n << 20) for n in range(3)]
        return Fake([[(*places, places[1] + 32)[word] if word < 4 else word for word in words] for words in shape])

    def place(turn: int, n: int) -> int:
        return (turn << 40) + (turn * n << 20)

    first, moved = recorded(1), {n: Moved(place(1, n), place(2, n), 64) for n in range(3)}
    found = address_words(first, recorded(2), moved)
    assert not found.unclear
    replay = first.bind([found.words[n] for n in range(3)], [place(1, n) for n in range(3)])
    for turn in (1, 3, 3, 2):
        replay([place(turn, n) for n in range(3)], 0)
        assert first.replayed.pop() == recorded(turn).words


def test_only_what_moved_since_the_last_replay_is_patched() -> None:
    class Counting(Fake):
        patched = 0

        def patch(self, patches: Sequence[Patch]) -> None:
            self.patched += len(patches)
            super().patch(patches)

    made = Counting([[64], [128, 64]])
    replay = made.bind([[AddressWord(0, 0), AddressWord(1, 8)], [AddressWord(1, 0)]], [64, 128])
    for addresses, patched in (([64, 128], 0), ([64, 256], 1), ([64, 256], 1), ([512, 256], 3)):
        replay(addresses, 0)
        assert made.patched == patched
        assert made.replayed[-1] == [[addresses[0]], [addresses[1], addresses[0]]]


def test_recordings_of_other_work_are_refused() -> None:
    with pytest.raises(ValueError, match="1 and 2 nodes"):
        address_words(Fake([[1]]), Fake([[1], [2]]), {})
    with pytest.raises(ValueError, match="node 0 is kernel k1 in one recording, kernel k2 in the other"):
        address_words(Fake([[1]]), Fake([[1, 2]]), {})
    with pytest.raises(ValueError, match="equally far"):
        address_words(Fake([]), Fake([]), {"x": Moved(0, 64, 8), "y": Moved(8, 72, 8)})


def test_a_difference_that_is_no_address_leaves_unclear_what_its_call_works_on() -> None:
    moved = {"x": Moved(100, 1000, 8), "y": Moved(200, 2000, 8), "z": Moved(300, 3000, 0)}
    first, second = Fake([[100, 7], [200], [7, 300]]), Fake([[1000, 9], [2000], [9, 3000]])
    assert set(address_words(first, second, moved).unclear) == {"x", "y", "z"}
    first.calls = [RecordedCall(range(2), ((104, 16),)), RecordedCall(range(2, 3), ())]
    found = address_words(first, second, moved)
    assert found.words == {"y": (AddressWord(1, 0),), "z": (AddressWord(2, 8),)}
    assert found.unclear == {"x": "bytes 8 of k2 (node 0) were 0x7, then 0x9: no address that moved"}


@pytest.mark.parametrize("was_left_in", ["first", "second", "neither"])
def test_an_address_of_the_host_is_what_was_left_on_its_stack(was_left_in: str) -> None:
    class OnHost(Fake):
        def is_of_host(self, word: int) -> bool:
            return word in range(7000, 8000)

    moved = {"x": Moved(100, 1000, 8)}
    before, after = 7004 if was_left_in == "first" else 1, 7123 if was_left_in == "second" else 2
    found = address_words(OnHost([[100, before]]), OnHost([[1000, after]]), moved)
    assert found.words == ({} if was_left_in == "neither" else {"x": (AddressWord(0, 0),)})
    assert set(found.unclear) == ({"x"} if was_left_in == "neither" else set())


def test_what_a_collective_works_on_stays_and_an_unknown_node_concerns_its_own_call_alone() -> None:
    moved = {"x": Moved(100, 1000, 8), "y": Moved(200, 2000, 8)}
    first, second = Fake([[100], [200]]), Fake([[1000], [2000]])
    first.calls = [RecordedCall(range(1), ((96, 8),), stays=True), RecordedCall(range(1, 2), ((200, 8),))]
    found = address_words(first, second, moved)
    assert found.words == {"y": (AddressWord(1, 0),)}
    assert found.unclear == {"x": "a collective works on it, which stays where it was recorded"}
    first, second = AndMore([[100], [200]]), AndMore([[1000], [2000]])
    first.calls = [RecordedCall(range(2, 3), ((100, 8),))]
    found = address_words(first, second, moved)
    assert found.unclear == {"x": "what work of the host (node 2) works on is not known"}


def test_numbers_are_told_apart_by_their_bits_and_not_by_how_far_they_changed() -> None:
    sign = 1 << 63
    moved = {"a": Moved(5, 77, 1, is_number=True), "-a": Moved(5 | sign, 77 | sign, 1, is_number=True)}
    found = address_words(Fake([[5, 5 | sign]]), Fake([[77, 77 | sign]]), moved)
    assert found.words == {"a": (AddressWord(0, 0),), "-a": (AddressWord(0, 8),)} and not found.unclear
    for other in (Moved(5, 77, 1, is_number=True), Moved(9, 9, 1, is_number=True)):
        with pytest.raises(ValueError, match="or one did not move"):
            address_words(Fake([]), Fake([]), {"a": moved["a"], "b": other})


def test_a_number_may_be_in_any_word_that_is_not_understood() -> None:
    moved = {"x": Moved(100, 1000, 8), "n": Moved(5, 77, 1, is_number=True)}
    first, second = Fake([[100, 5], [7]]), Fake([[1000, 77], [9]])
    first.calls = [RecordedCall(range(1, 2), ())]
    found = address_words(first, second, moved)
    assert found.words == {"x": (AddressWord(0, 0),)} and set(found.unclear) == {"n"}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(1, 3))), st.integers(0, 9), st.integers(1, 5)
)
def test_a_call_works_on_memory_that_a_tensor_of_it_has_a_byte_of(
    views: list[tuple[int, int, int]], start: int, count: int
) -> None:
    memory = torch.empty(64, dtype=torch.uint8)
    tensors = [memory[at:].as_strided((n,), (step,)) for at, n, step in views]
    call = RecordedCall.of(range(1), tensors)
    spans = [range(at, at + 1 + (n - 1) * step) for at, n, step in views if n]
    overlaps = any(byte in span for span in spans for byte in range(start, start + count))
    assert call.works_on(memory.data_ptr() + start, count) is overlaps


def test_a_word_outside_of_what_moved_makes_that_unclear_alone() -> None:
    found = address_words(Fake([[50, 100]]), Fake([[51, 200]]), {"x": Moved(1, 2, 8), "y": Moved(100, 200, 8)})
    assert found.words == {"y": (AddressWord(0, 8),)}
    assert found.unclear == {"x": "bytes 0 of k2 (node 0) moved with it and lie outside of it"}


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=5), st.data())
def test_what_differs_over_the_same_memory_is_no_address_and_hides_none(
    shape: list[list[int]], data: st.DataObject
) -> None:
    """Words 0 and 1 stand for tensors that move, 2 and 3 for bytes that nobody wrote, others for what stays."""
    noise = st.integers(0, 1 << 40)

    def recorded(turn: int) -> Fake:
        places = [(turn << 40) + (turn * n << 20) for n in range(2)]
        draw = lambda word: places[word] if word < 2 else data.draw(noise) if word < 4 else word  # noqa: E731
        return Fake([[draw(word) for word in words] for words in shape])

    first, second, again = recorded(1), recorded(2), recorded(1)
    again.words = [
        [a + 1 if word in (2, 3) else a for a, word in zip(line, words, strict=True)]
        for line, words in zip(first.words, shape, strict=True)
    ]
    moved = {n: Moved((1 << 40) + (n << 20), (2 << 40) + (2 * n << 20), 64) for n in range(2)}
    found = address_words(first, second, moved, again)
    assert not found.unclear
    for n in range(2):
        expected = [(k, 8 * at) for k, words in enumerate(shape) for at, word in enumerate(words) if word == n]
        assert [(w.node, w.offset) for w in found.words[n]] == expected


def test_nodes_that_cannot_be_patched_leave_what_they_hold_unclear() -> None:
    moved = {"x": Moved(1, 2, 8), "y": Moved(100, 200, 8)}
    found = address_words(Fake([[1, 7]], "other"), Fake([[2, 7]], "other"), moved)
    assert found.words == {"y": ()}
    assert found.unclear == {"x": "bytes 0 of k2 (node 0) hold its address, and cannot be patched"}
    found = address_words(Fake([[]], "other"), Fake([[]], "other"), moved)
    assert not found.words
    assert found.unclear == dict.fromkeys("xy", "what k0 (node 0) works on is not known")


@pytest.mark.parametrize("stride", [(4, 1), (1, 3), (0, 1)])
def test_a_tensor_lies_where_it_is_told(stride: tuple[int, int]) -> None:
    memory = torch.arange(16.0)
    found = tensor_at(memory.data_ptr() + 8, (3, 4), stride, torch.float32, memory.device)
    assert torch.equal(found, memory.as_strided((3, 4), stride, 2))
    found[0, 1] = -1
    assert memory.as_strided((3, 4), stride, 2)[0, 1] == -1
