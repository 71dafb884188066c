"""A conformance run: many drawn programs through one compiler, every failure shrunk and printed as source."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Sequence

import attrs

from turret.testing.builder import Features, Spoiled
from turret.testing.cases import CASES, Case
from turret.testing.check import Compiler, Mismatch, assert_same, check
from turret.testing.chooser import RandomChooser
from turret.testing.compare import summary_of
from turret.testing.draw import draw_program
from turret.testing.program import Program, merge
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
    """What a run did: ``cases`` written by hand and drawn ``programs`` checked, and what failed.

    ``operations`` counts the programs in which each operation occurred; ``failed_cases`` maps the name of a case
    of ``turret.testing.cases`` to what is wrong.
    """

    programs: int
    cases: int
    seconds: float
    operations: dict[str, int]
    failures: tuple[Failure, ...]
    failed_cases: dict[str, str]

    @property
    def passed(self) -> bool:
        return not self.failures and not self.failed_cases

    def __str__(self) -> str:
        speed = self.programs / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.cases} cases, {len(self.failed_cases)} failures; {self.programs} programs, "
            f"{len(self.failures)} failures, {len(self.operations)} operations; "
            f"{self.seconds:.1f} s ({speed:.1f} programs/s)",
            *(f"case {name}: {message}" for name, message in self.failed_cases.items()),
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


@attrs.frozen
class Symptom:
    """What is wrong with a compiler on one program: a message, and its kinds, by which failures are told apart."""

    message: str
    kinds: frozenset[str]


def symptom_of(program: Program, compiler: Compiler) -> Symptom | None:
    """Check a program; None when the compiler does as eager does."""
    try:
        check(program, compiler)
    except Mismatch as mismatch:
        found = mismatch.differences
        kinds = {d.got.partition(":")[0] if d.what == "error" else d.what for d in found}
        return Symptom("; ".join(map(str, found)), frozenset(kinds))
    except Exception as error:
        name = type(error).__name__
        return Symptom(f"compiling raised {name}: {summary_of(error)}", frozenset({f"compiling raised {name}"}))
    return None


@attrs.frozen
class Checked:
    """The programs of some seeds, and which of them failed."""

    programs: tuple[Program, ...]
    failures: tuple[Failure, ...]


def check_seeds(
    seeds: Sequence[int], compiler: Compiler, features: Features | None = None, *, shrink_attempts: int = 200
) -> Checked:
    """Draw, check and, on failure, shrink the programs of ``seeds``.

    Several seeds are compiled together, those of one kind of backward as one function (but for those whose calls
    differ in sizes, numbers or setting), and one by one only where that fails: for compilers whose cost is mostly per
    function.
    """
    programs = tuple(program_of_seed(seed, features) for seed in seeds)
    groups: dict[str | int, list[Program]] = collections.defaultdict(list)
    for number, program in enumerate(programs):
        alone = program.layouts > 1 or program.setting
        groups[number if alone else program.backward].append(program)
    failures: list[Failure] = []
    for group in groups.values():
        if len(group) > 1 and symptom_of(merge(group), compiler) is None:
            continue
        failed = [failure for p in group if (failure := _check_one(p, compiler, shrink_attempts)) is not None]
        if len(group) > 1 and not failed:
            together = attrs.evolve(merge(group), seed=group[0].seed)
            failed = [failure for failure in [_check_one(together, compiler, shrink_attempts)] if failure is not None]
        failures += failed
    return Checked(programs, tuple(failures))


def _check_one(program: Program, compiler: Compiler, shrink_attempts: int) -> Failure | None:
    symptom = symptom_of(program, compiler)
    if symptom is None:
        return None

    def fails(candidate: Program) -> bool:
        found = symptom_of(candidate, compiler)
        return found is not None and bool(found.kinds & symptom.kinds)

    small = shrink(program, fails, attempts=shrink_attempts)
    again = symptom_of(small, compiler)
    message = again.message if again is not None else f"{symptom.message} (not every time)"
    return Failure(program.seed or 0, message, small, program)


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
    """Check the cases written by hand, then the programs of ``programs`` consecutive seeds.

    Stops early after ``seconds``, or when ``max_failures`` programs have failed.

    ``compiler`` takes a function and returns one that must behave the same, gradients, aliases and writes to
    inputs included.  Narrow ``features`` to what the compiler claims to support.
    """
    start = time.perf_counter()
    allowed = [case for case in CASES.values() if case.needs <= _supported(features or Features())]
    failed_cases = {case.name: message for case in allowed if (message := check_case(case, compiler)) is not None}
    counts: collections.Counter[str] = collections.Counter()
    failures: list[Failure] = []
    done = 0
    for number in _until(programs, start, seconds):
        checked = check_seeds([seed + number], compiler, features)
        counts.update({name for program in checked.programs for name in program.ops})
        failures += checked.failures
        done += 1
        if progress is not None:
            progress(done)
        if len(failures) >= max_failures:
            break
    elapsed = time.perf_counter() - start
    return ConformanceReport(done, len(allowed), elapsed, dict(counts.most_common()), tuple(failures), failed_cases)


def _supported(features: Features) -> set[str]:
    return {name for name in ("gradients", "mutation") if getattr(features, name)}


def check_case(case: Case, compiler: Compiler) -> str | None:
    """What is wrong with the compiler on a case written by hand, or None."""
    try:
        assert_same(case.function, compiler(case.function), case.make_inputs)
    except Mismatch as mismatch:
        return "; ".join(map(str, mismatch.differences))
    except Exception as error:
        return f"compiling raised {type(error).__name__}: {summary_of(error)}"
    return None


def _until(count: int, start: float, seconds: float | None) -> Iterator[int]:
    for number in range(count):
        if seconds is not None and time.perf_counter() - start > seconds:
            return
        yield number
