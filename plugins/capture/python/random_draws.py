"""What is drawn from random generators: looked at ahead on a copy, and drawn for good once the graph has run."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy


class Fork:
    """A copy of a generator as it is at the start of a call, and what was drawn from it by now."""

    __slots__ = ("generator", "results")

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.results: list[Any] = []


@attrs.frozen(eq=False)
class Draw:
    """One of a row of calls of a generator; called with a ``Fork``, what it gives.

    Args:
        previous: the call before it; None for the first one.
        method: a function of the generator, then of the arguments.
        arguments: none of which the call may change.
    """

    previous: Draw | None
    method: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = attrs.field(factory=dict)
    number: int = attrs.field(init=False)

    @number.default
    def _count(self) -> int:
        return 0 if self.previous is None else self.previous.number + 1

    @property
    def __name__(self) -> str:
        return f"{self.method.__name__}_{self.number}"

    def row(self) -> Iterator[Draw]:
        """The calls up to this one, from here backwards."""
        draw: Draw | None = self
        while draw is not None:
            yield draw
            draw = draw.previous

    def on(self, generator: Any) -> Any:
        """Make the call."""
        return self.method(generator, *self.arguments, **self.named)

    def __call__(self, fork: Fork) -> Any:
        results = fork.results
        for draw in reversed([d for d, _ in zip(self.row(), range(self.number + 1 - len(results)), strict=False)]):
            results.append(draw.on(fork.generator))
        return results[self.number]


def fork(generator: random.Random) -> Fork:
    """A copy of a generator."""
    return fork_of_state(generator.getstate())


def fork_of_state(state: Any) -> Fork:
    """A generator in a state that ``getstate`` gave."""
    made = random.Random.__new__(random.Random)
    made.setstate(state)
    return Fork(made)


def fork_for_row(fork: Callable[[Any], Fork]) -> Callable[[Any], Fork]:
    """A function that does the same, and is another one for each row of draws: equal sources are read once."""
    made = functools.partial(fork)
    made.__name__ = fork.__name__  # type: ignore[attr-defined]
    return made


def state_of_seed(seed: int) -> Any:
    """The state of a generator that is seeded."""
    return random.Random(seed).getstate()


def fork_of_numpy(generator: Any) -> Fork:
    """A copy of a generator of numpy's."""
    return Fork(copy.deepcopy(generator))


def fork_of_numpy_state(state: Any) -> Fork:
    """A generator of numpy's in a state that ``get_state`` gave."""
    made = numpy.random.RandomState(0)
    made.set_state(state)
    return Fork(made)


def state_of_numpy(generator: Any) -> str:
    """The state of a generator of numpy's, as something that compares equal for equal states."""
    if isinstance(generator, numpy.random.RandomState):
        return _as_text(generator.get_state(legacy=False))
    return _as_text(generator.bit_generator.state)


def _as_text(state: Any) -> str:
    if isinstance(state, dict):
        return repr({key: _as_text(value) for key, value in state.items()})
    return repr(state.tobytes() if isinstance(state, numpy.ndarray) else state)


def redraw(generator: Any, last: Draw | None) -> Any:
    """Make a row of calls of a generator; returns the generator."""
    for draw in reversed(list(last.row() if last is not None else ())):
        draw.on(generator)
    return generator


def reset(generator: random.Random, state: Any) -> random.Random:
    """Set a generator to a state; returns the generator."""
    generator.setstate(state)
    return generator


def reset_numpy(generator: Any, state: Any) -> Any:
    """Set a generator of numpy's to a state; returns the generator."""
    generator.set_state(state)
    return generator


def is_state(value: Any) -> bool:
    """Whether a generator can be set to a state."""
    return _is_made_by(fork_of_state, value)


def is_numpy_state(value: Any) -> bool:
    """Whether a generator of numpy's can be set to a state."""
    return _is_made_by(fork_of_numpy_state, value)


def _is_made_by(make: Callable[[Any], Fork], state: Any) -> bool:
    try:
        make(state)
    except Exception:
        return False
    return True


def shuffled(generator: random.Random, items: tuple[Any, ...]) -> list[Any]:
    """The items in another order."""
    order = list(items)
    generator.shuffle(order)
    return order


def shuffled_numbers(generator: Any, count: int) -> numpy.ndarray:
    """The numbers below ``count`` in the order that numpy shuffles so many things to."""
    order = numpy.arange(count)
    generator.shuffle(order)
    return order


@attrs.frozen(eq=False)
class Applied:
    """A function of what was drawn, which stands among constants."""

    function: Callable[..., Any]
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    named: dict[str, Any] = attrs.field(factory=dict)

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, drawn: Any) -> Any:
        return self.function(*self.before, drawn, *self.after, **self.named)


@attrs.frozen(eq=False)
class Entry:
    """One of a row of numbers, by its place; None where there is none at it."""

    numbers: tuple[Any, ...]
    __name__ = "entry"

    def __call__(self, place: int) -> Any:
        return self.numbers[place] if -len(self.numbers) <= place < len(self.numbers) else None
