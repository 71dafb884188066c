"""Addresses in a recording are found by recording twice; anything else that differs is an error."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turret.graph_capture import Patch, RecordedNode, Recording, address_words


class Fake(Recording):
    """Nodes of words; ``replayed`` lists the words of each replay."""

    def __init__(self, nodes: Sequence[Sequence[int]]) -> None:
        self.words, self.replayed = [list(words) for words in nodes], []

    @property
    def nodes(self) -> Sequence[RecordedNode]:
        return [RecordedNode("kernel", f"k{len(w)}", struct.pack(f"<{len(w)}Q", *w)) for w in self.words]

    def patch(self, patches: Sequence[Patch]) -> None:
        for patch in patches:
            self.words[patch.node][patch.offset // 8] = patch.address

    def replay(self, stream: int) -> None:
        self.replayed.append([list(words) for words in self.words])


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=5))
def test_patched_where_two_recordings_differ_a_third_comes_out(shape: list[list[int]]) -> None:
    """Words 0 to 2 stand for tensors that move, the others for what stays."""

    def recorded(base: int) -> Fake:
        return Fake([[base + 64 * word if word < 3 else word for word in words] for words in shape])

    first, moved = recorded(1 << 40), {n: ((1 << 40) + 64 * n, (1 << 41) + 64 * n) for n in range(3)}
    words = address_words(first, recorded(1 << 41), moved)
    first.patch([Patch(*place, (1 << 42) + 64 * n) for n, places in words.items() for place in places])
    first.replay(0)
    assert first.replayed == [recorded(1 << 42).words]


def test_recordings_of_other_work_are_refused() -> None:
    with pytest.raises(ValueError, match="1 and 2 nodes"):
        address_words(Fake([[1]]), Fake([[1], [2]]), {})
    with pytest.raises(ValueError, match="node 0 is kernel k1 in one recording, kernel k2 in the other"):
        address_words(Fake([[1]]), Fake([[1, 2]]), {})


def test_a_difference_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bytes 8 of k2 \(node 0\) differ, and are no address that moved: \(7, 9\)"):
        address_words(Fake([[1, 7]]), Fake([[2, 9]]), {"x": (1, 2)})
