"""Sources of choices that programs are drawn from: a seeded generator, or hypothesis.

Both answer the same few questions, so that one builder serves bulk fuzzing by seed and property tests with
hypothesis's shrinking.  In every choice the first alternative is the simplest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
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


class ListChooser:
    """Choices from a list, each moved into its range, and the simplest one when there are no more.

    ``made`` lists the choices that were made: from those the same comes again.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self._left = list(reversed(choices))
        self.made: list[int] = []

    def integer(self, low: int, high: int) -> int:
        chosen = min(max(self._left.pop() if self._left else low, low), high)
        self.made.append(chosen)
        return chosen


class RecordingChooser:
    """Choices from another chooser, listed in ``made``."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.made: list[int] = []

    def integer(self, low: int, high: int) -> int:
        self.made.append(self._chooser.integer(low, high))
        return self.made[-1]


class DrawnChooser:
    """Choices from hypothesis: ``draw_integer(low, high)`` draws one."""

    def __init__(self, draw_integer: Callable[[int, int], int]) -> None:
        self._draw_integer = draw_integer

    def integer(self, low: int, high: int) -> int:
        return low if low == high else self._draw_integer(low, high)


def smaller_choices(choices: Sequence[int]) -> Iterator[list[int]]:
    """Lists of choices that stand for something simpler: parts left out, the longest first, or lower choices."""
    length = len(choices) // 2
    while length:
        for start in range(len(choices) - length, -1, -length):
            yield [*choices[:start], *choices[start + length :]]
        length //= 2
    for position, value in enumerate(choices):
        for lower in dict.fromkeys((0, value // 2, value - 1)):
            if 0 <= lower < value:
                yield [*choices[:position], lower, *choices[position + 1 :]]


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
