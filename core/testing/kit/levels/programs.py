"""Level ``programs``: drawn programs, compiled whole, against eager."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from turret.testing.comparison.checker import check
from turret.testing.corpus.builder import Features, Spoiled
from turret.testing.corpus.chooser import RandomChooser
from turret.testing.corpus.draw import draw_program
from turret.testing.corpus.program import Program, merge
from turret.testing.kit.levels.level import SEED, Level, Settings, Symptom
from turret.testing.kit.shrinking import shrink
from turret.testing.kit.subject import Compiler, Subject

SIZES = {"small": 24, "medium": 200, "large": 2000}


def program_of_seed(seed: int, features: Features | None = None) -> Program:
    """The program that a seed stands for; seeds whose draw leads nowhere move on to a derived one."""
    for attempt in range(1000):
        try:
            program = draw_program(RandomChooser(seed + attempt * 1_000_000_007), features)
        except Spoiled:
            continue
        return attrs.evolve(program, seed=seed)
    raise AssertionError(f"seed {seed}: no program in 1000 draws; are the features too narrow?")


def groups(programs: Sequence[Program]) -> list[list[Program]]:
    """Programs that can be compiled as one function: of one kind of backward, one layout, and no setting."""
    found: dict[str | int, list[Program]] = collections.defaultdict(list)
    for number, program in enumerate(programs):
        alone = program.layouts > 1 or program.setting
        found[number if alone else program.backward].append(program)
    return list(found.values())


class Programs(Level):
    """Items are seeds."""

    name = "programs"

    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        return settings.seeds(settings.count(self.name, SIZES))

    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[Program]:
        features = attrs.evolve(settings.features or Features(), device=subject.device)
        yield program_of_seed(int(item.removeprefix(SEED)), features)

    def try_out(self, candidate: Program, compiler: Compiler, subject: Subject) -> None:
        check(candidate, compiler)

    def shrink(self, candidate: Program, fails: Callable[[Any], bool], attempts: int) -> Program:
        return shrink(candidate, fails, attempts=attempts)

    def failing(self, programs: Sequence[Program], subject: Subject) -> Iterator[tuple[Program, Symptom]]:
        """The programs that fail: several are compiled together, and one by one only where that fails."""
        for group in groups(programs):
            if len(group) > 1 and self.symptom(merge(group), subject) is None:
                continue
            found = [(program, self.symptom(program, subject)) for program in group]
            if len(group) > 1 and not any(symptom for _, symptom in found):
                together = attrs.evolve(merge(group), seed=group[0].seed)
                found = [(together, self.symptom(together, subject))]
            yield from ((program, symptom) for program, symptom in found if symptom is not None)

    def source(self, candidate: Program) -> str:
        around = (
            "    called, compiled = (functools.partial(call, f) for f in (program, subject.compile(program)))\n"
            if candidate.calls_through
            else "    called, compiled = program, subject.compile(program)\n"
        )
        return (
            f"{'import functools' if candidate.calls_through else ''}\n{candidate.source()}\n\n"
            f"def main():\n{around}"
            f"    assert_same(called, compiled, lambda call: Inputs(*make_inputs(call)), "
            f"backward={candidate.backward!r}, calls={candidate.calls})\n"
        )


@attrs.frozen
class Failure:
    """A program on which a compiler is wrong, or raised where eager does not, as small as shrinking made it."""

    seed: int
    message: str
    program: Program


@attrs.frozen
class Checked:
    """The programs of some seeds, and which of them failed."""

    programs: tuple[Program, ...]
    failures: tuple[Failure, ...]


def check_seeds(
    seeds: Sequence[int], compiler: Compiler, features: Features | None = None, *, shrink_attempts: int = 200
) -> Checked:
    """Draw, check and, on failure, shrink the programs of ``seeds``, for runs that keep a record of their own."""
    level, subject = Programs(), Subject(compiler=compiler)
    programs = tuple(program_of_seed(seed, features) for seed in seeds)
    failures = []
    for program, found in level.failing(programs, subject):
        small, message = level.smallest(program, found, subject, shrink_attempts)
        failures.append(Failure(program.seed or 0, message, small))
    return Checked(programs, tuple(failures))
