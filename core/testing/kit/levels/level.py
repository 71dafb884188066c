"""What a level of a conformance run is: items, how one is checked, how a failure shrinks, and its file."""

from __future__ import annotations

import abc
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

from turret.testing.comparison.checker import Mismatch
from turret.testing.comparison.compare import summary_of
from turret.testing.comparison.outcome import Outcome, Status
from turret.testing.corpus.builder import Features
from turret.testing.kit.subject import Compiler, Subject

Size = Literal["small", "medium", "large"]

SEED = "seed"
"""How items begin that are seeds."""

REFUSED = re.compile("UnsupportedError|DataDependentOutputException|DynamicOutputShapeException|no plugin took")
"""What an error says by which a stage declines a program, as it may: Turret then runs it eagerly, on record."""

_FAR = 1_000_003
"""Distance of the seeds of one run from those of a run with the next seed."""


@attrs.frozen
class Settings:
    """How much a run does: ``size``, or a number of items for a level in ``counts``; ``seed`` moves all that is drawn.

    ``shrink_attempts`` bounds how often one failure is tried again.
    """

    size: Size = "small"
    seed: int = 0
    counts: Mapping[str, int] = attrs.field(factory=dict)
    features: Features | None = None
    shrink_attempts: int = 150

    def count(self, level: str, sizes: Mapping[str, int]) -> int:
        """How many items a level has, by its own table of sizes."""
        return self.counts.get(level, sizes[self.size])

    def seeds(self, count: int) -> list[str]:
        """Items that are seeds."""
        first = self.seed * _FAR
        return [f"{SEED}{seed}" for seed in range(first, first + count)]


@attrs.frozen
class Symptom:
    """What is wrong on one candidate: a message, and its kinds, by which failures are told apart."""

    message: str
    kinds: frozenset[str]

    @property
    def status(self) -> Status:
        return "error" if any("raised" in kind for kind in self.kinds) else "wrong"


class Level(abc.ABC):
    """One level.  A candidate is what is checked, shrunk and written to a file; an item has one or more."""

    name: ClassVar[str]
    has_eager: ClassVar[bool] = True
    """Whether eager is what candidates are compared with."""

    def prepare(self) -> None:  # noqa: B027 (most levels have nothing to do)
        """Import what checking takes."""

    @abc.abstractmethod
    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        """Names of the items of a run, in order."""

    @abc.abstractmethod
    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[Any]:
        """What there is to check of an item."""

    @abc.abstractmethod
    def try_out(self, candidate: Any, compiler: Compiler, subject: Subject) -> None:
        """Compare the candidate, compiled, with what it has to be; raises ``Mismatch`` or whatever compiling raises."""

    @abc.abstractmethod
    def source(self, candidate: Any) -> str:
        """Python that defines ``main()``, which does what ``try_out`` does, by the names of ``turret.testing`` and
        ``subject``."""

    def shrink(self, candidate: Any, fails: Callable[[Any], bool], attempts: int) -> Any:
        """A smaller candidate that fails."""
        return candidate

    def why_skipped(self, item: str, subject: Subject) -> str:
        """Why an item is not tried, or an empty string."""
        return ""

    def eager_error(self, candidate: Any, subject: Subject) -> BaseException | None:
        """What eager raises for a candidate on the device, if there is nothing to compare with then."""
        return None

    def check(self, item: str, subject: Subject, settings: Settings) -> Outcome:
        """What comes of an item, a failure shrunk."""
        if reason := self.why_skipped(item, subject):
            return Outcome(self.name, item, "skipped", reason)
        subject.observer.reset()
        compared, reason = 0, "there is nothing to compare"
        for candidate in self.candidates(item, subject, settings):
            error = self.eager_error(candidate, subject)
            if error is not None:
                reason = f"eager raises {type(error).__name__} on {subject.device}: {summary_of(error)}"
                continue
            compared += 1
            found = self.symptom(candidate, subject)
            if found is not None:
                return self.failure(item, candidate, found, subject, settings)
        return self.passed(item, subject) if compared else Outcome(self.name, item, "skipped", reason)

    def passed(self, item: str, subject: Subject) -> Outcome:
        """The outcome of an item of which nothing is wrong."""
        if not subject.is_turret:
            return Outcome(self.name, item, "right")
        reason = subject.observer.why_eager
        return Outcome(self.name, item, "eager" if reason else "right", reason, subject.observer.made)

    def failure(self, item: str, candidate: Any, found: Symptom, subject: Subject, settings: Settings) -> Outcome:
        """The outcome of an item that fails, as small as shrinking makes it."""
        small, message = self.smallest(candidate, found, subject, settings.shrink_attempts)
        text = file_text(self.source(small), subject, f"{self.name} {item}", message)
        return Outcome(self.name, item, found.status, message, source=text)

    def smallest(self, candidate: Any, found: Symptom, subject: Subject, attempts: int) -> tuple[Any, str]:
        """A candidate that fails in the same way, as small as shrinking makes it, and what is wrong on it."""

        def fails(smaller: Any) -> bool:
            again = self.symptom(smaller, subject)
            return again is not None and bool(again.kinds & found.kinds)

        small = self.shrink(candidate, fails, attempts)
        again = self.symptom(small, subject)
        return small, again.message if again is not None else f"{found.message} (not every time)"

    def symptom(self, candidate: Any, subject: Subject) -> Symptom | None:
        """What is wrong with the subject on a candidate; None where it is right, or runs eagerly with a reason."""
        found = symptom_of(lambda: self.try_out(candidate, subject.compile, subject))
        if found is None or not subject.is_turret or not REFUSED.search(found.message):
            return found
        reasons = [found.message]

        def eager_where_refused(function: Callable) -> Callable:
            return subject.compile(function, on_error="fallback")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = symptom_of(lambda: self.try_out(candidate, eager_where_refused, subject))
        subject.observer.fallbacks += reasons
        return found


def symptom_of(attempt: Callable[[], None]) -> Symptom | None:
    """What an attempt raises, as a symptom."""
    try:
        attempt()
    except Mismatch as mismatch:
        found = mismatch.differences
        kinds = {d.got.partition(":")[0] if d.what == "error" else d.what for d in found}
        return Symptom("; ".join(map(str, found)), frozenset(kinds))
    except Exception as error:
        name = type(error).__name__
        return Symptom(f"raised {name}: {summary_of(error)}", frozenset({f"raised {name}"}))
    return None


def file_text(body: str, subject: Subject, title: str, message: str) -> str:
    """A file that shows a failure by itself: ``python failure.py`` ends with status 1 and says what differs."""
    told = message.replace("\\", "\\\\").replace('"""', "'''")
    folders = subject.folders()
    paths = f"import sys\n\nsys.path[:0] = {folders!r}\n\n" if folders else ""
    return (
        f'"""{title}: {subject} is not as eager.\n\n{told}\n"""\n\n'
        f"{paths}from turret.testing import Inputs, Subject, assert_same, object_of\n\n{subject.source()}\n\n\n"
        f'{body.strip()}\n\n\nif __name__ == "__main__":\n    main()\n    print("as eager")\n'
    )
