"""Sources of choices that programs are drawn from: a seeded generator, or hypothesis.

Both answer the same few questions, so that one builder serves bulk fuzzing by seed and property tests with
hypothesis's shrinking.  In every choice the first alternative is the simplest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chooser(Protocol):
    """Anything that can pick an integer; all other choices are made of these."""

    def integer(self, low: int, high: int) -> int:
        """An integer in ``[low, high]``."""


class RandomChooser:
    """Choices from a seed: the same seed gives the same program on every machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


class DrawnChooser:
    """Choices from hypothesis: ``draw_integer(low, high)`` draws one."""

    def __init__(self, draw_integer: Callable[[int, int], int]) -> None:
        self._draw_integer = draw_integer

    def integer(self, low: int, high: int) -> int:
        return low if low == high else self._draw_integer(low, high)


def choice(chooser: Chooser, items: Sequence[T]) -> T:
    """One of ``items``; raises ``IndexError`` when there are none."""
    if not items:
        raise IndexError("nothing to choose from")
    return items[chooser.integer(0, len(items) - 1)]


def chance(chooser: Chooser, percent: int) -> bool:
    """True in ``percent`` of 100 draws; the simplest answer is False."""
    return chooser.integer(0, 99) >= 100 - percent


def weighted(chooser: Chooser, items: Sequence[tuple[T, int]]) -> T:
    """One item by integer weight."""
    position = chooser.integer(0, sum(weight for _, weight in items) - 1)
    for item, weight in items:
        if position < weight:
            return item
        position -= weight
    raise AssertionError("weights do not add up")


def subset(chooser: Chooser, items: Sequence[T], percent: int = 50) -> list[T]:
    """Each item with the given chance, in order."""
    return [item for item in items if chance(chooser, percent)]
