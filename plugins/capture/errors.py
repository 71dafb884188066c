"""How symbolic execution stops: at what it does not know, or at an exception of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turret.errors import TurretError

if TYPE_CHECKING:
    from turret.frames.sources import Source

NOWHERE = -1
"""The step of something that no break helps with: the frame runs as Python."""


class Unsupported(TurretError):
    """Something that capture does not follow; becomes a graph break, or eager execution where none is possible.

    ``reason`` is for people; ``hint`` says what to do about it, where that is known.  ``step`` is the step of the root
    frame to break at, where that is an earlier one than the step that failed, or ``NOWHERE``; ``location`` the line of
    the program, with its file, where it is not the one that failed.
    """

    def __init__(self, reason: str, hint: str = "", step: int | None = None, location: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint, self.step = reason, hint, step
        self.stack: str = ""
        self.location = location
        self.numbers: frozenset[Source] = frozenset()
        """Floats, ints, sizes and strides that change and that an operation took no symbols for."""


class FloatNeeded(Unsupported):
    """Floats that change are needed as what they are now: capture takes them for constants, and begins again."""


class TextNeeded(Unsupported):
    """A text of numbers that change is read: capture takes numbers in texts for constants, and begins again."""


class DecidedByData(Unsupported):
    """Data decide whether a value is true: each of the ways to go on is as good as the other."""


class ChecksDecide(Unsupported):
    """A check on data was left to a graph that must not run twice: capture begins again, and checks break the graph."""


class AskedFor(Unsupported):
    """A graph break that the program asked for by a mark: no news to whoever wrote it."""


class Postponed(Exception):
    """This call has to run as Python, and capture waits for the next: it changes what is captured, once and for all."""


class Raised(Exception):
    """The program under capture raised; ``value`` is the symbolic exception."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


class NotConstant(Exception):
    """A value has no Python constant that stands for it."""
