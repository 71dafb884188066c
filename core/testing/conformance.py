"""A conformance run: many drawn programs through one compiler, every failure shrunk and printed as source."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator

import attrs

from turret.testing.builder import Features, Spoiled
from turret.testing.check import Compiler, Mismatch, check
from turret.testing.chooser import RandomChooser
from turret.testing.draw import draw_program
from turret.testing.program import Program
from turret.testing.shrink import shrink


@attrs.frozen
class Failure:
    """One program on which the compiler is wrong, or raised where eager does not.

    ``program`` reproduces it and is as small as shrinking made it; ``original`` is what was drawn.
    """

    seed: int
    message: str
    program: Program
    original: Program

    def __str__(self) -> str:
        rule = "-" * 100
        return f"{rule}\nseed {self.seed}: {self.message}\n\n{self.program.source()}"


@attrs.frozen
class ConformanceReport:
    """What a run did: ``programs`` checked, how often each operation occurred, and what failed."""

    programs: int
    seconds: float
    operations: dict[str, int]
    failures: tuple[Failure, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        speed = self.programs / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.programs} programs, {len(self.failures)} failures, {len(self.operations)} operations, "
            f"{self.seconds:.1f} s ({speed:.1f} programs/s)"
        ]
        return "\n".join([*lines, *(str(failure) for failure in self.failures)])


def program_of_seed(seed: int, features: Features | None = None) -> Program:
    """The program that a seed stands for; seeds whose draw leads nowhere move on to a derived one."""
    for attempt in range(1000):
        try:
            program = draw_program(RandomChooser(seed + attempt * 1_000_000_007), features)
        except Spoiled:
            continue
        return attrs.evolve(program, seed=seed)
    raise AssertionError(f"seed {seed}: no program in 1000 draws; are the features too narrow?")


def message_of(program: Program, compiler: Compiler) -> str | None:
    """Why the compiler fails on the program (one line), or None when it does not."""
    try:
        check(program, compiler)
    except Mismatch as mismatch:
        return "; ".join(str(difference) for difference in mismatch.differences)
    except Exception as error:
        lines = str(error).strip().splitlines()
        return f"compiling raised {type(error).__name__}: {lines[0] if lines else ''}"
    return None


def check_seed(
    seed: int, compiler: Compiler, features: Features | None = None, *, shrink_attempts: int = 200
) -> tuple[Program, Failure | None]:
    """Draw, check and, on failure, shrink the program of one seed."""
    program = program_of_seed(seed, features)
    message = message_of(program, compiler)
    if message is None:
        return program, None
    small = shrink(program, lambda candidate: message_of(candidate, compiler) is not None, attempts=shrink_attempts)
    return program, Failure(seed, message_of(small, compiler) or message, small, program)


def conformance(
    compiler: Compiler,
    *,
    programs: int = 200,
    seconds: float | None = None,
    seed: int = 0,
    features: Features | None = None,
    max_failures: int = 5,
    progress: Callable[[int], None] | None = None,
) -> ConformanceReport:
    """Check the programs of ``programs`` consecutive seeds; stop early after ``seconds`` or ``max_failures``.

    ``compiler`` takes a function and returns one that must behave the same, gradients, aliases and writes to
    inputs included.  Narrow ``features`` to what the compiler claims to support.
    """
    start = time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    failures: list[Failure] = []
    done = 0
    for number in _until(programs, start, seconds):
        program, failure = check_seed(seed + number, compiler, features)
        counts.update(set(program.ops))
        done += 1
        if progress is not None:
            progress(done)
        if failure is not None:
            failures.append(failure)
            if len(failures) >= max_failures:
                break
    return ConformanceReport(done, time.perf_counter() - start, dict(counts.most_common()), tuple(failures))


def _until(count: int, start: float, seconds: float | None) -> Iterator[int]:
    for number in range(count):
        if seconds is not None and time.perf_counter() - start > seconds:
            return
        yield number
