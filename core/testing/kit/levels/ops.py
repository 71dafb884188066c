"""Level ``ops``: torch's own table of operations, forward and backward, against eager."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from turret.testing.comparison.checker import assert_same
from turret.testing.comparison.observe import observe
from turret.testing.corpus.program import Backward
from turret.testing.kit.levels.level import Level, Settings
from turret.testing.kit.subject import Compiler, Subject

if TYPE_CHECKING:
    from turret.testing.corpus.op_table import Case, SampleProgram

SIZES = {"small": 60, "medium": 300, "large": 100_000}
"""Cases (an operation at one dtype), spread over the table."""
SAMPLES = {"small": 1, "medium": 2, "large": 3}
MISSING = "torch's table of operations needs expecttest: pip install expecttest"


@attrs.frozen(eq=False)
class Sample:
    """One sample of a case: its number among the samples, and whether it is differentiated."""

    case: Case
    number: int
    program: SampleProgram
    backward: Backward
    device: str


@functools.cache
def table() -> dict[str, Case]:
    """The cases by name."""
    from turret.testing.corpus.op_table import cases

    return {case.id: case for case in cases()}


class Ops(Level):
    """Items are operations with a dtype, as ``add:float32``."""

    name = "ops"

    def prepare(self) -> None:
        if importlib.util.find_spec("expecttest") is not None:
            table()

    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        if importlib.util.find_spec("expecttest") is None:
            return ["all"]
        names = list(table())
        count = min(settings.count(self.name, SIZES), len(names))
        return [names[(settings.seed + k * len(names) // count) % len(names)] for k in range(count)]

    def why_skipped(self, item: str, subject: Subject) -> str:
        if importlib.util.find_spec("expecttest") is None:
            return MISSING
        from turret.testing.corpus.op_table import skip_reason

        return skip_reason(table()[item])

    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[Sample]:
        from turret.testing.corpus.op_table import samples

        case = table()[item]
        backward: Backward = "all" if case.differentiable else "none"
        for number, program in enumerate(samples(case, SAMPLES[settings.size], subject.device)):
            yield Sample(case, number, program, backward, subject.device)

    def eager_error(self, candidate: Sample, subject: Subject) -> BaseException | None:
        return observe(candidate.program.function, candidate.program.make_inputs(), candidate.backward).error

    def try_out(self, candidate: Sample, compiler: Compiler, subject: Subject) -> None:
        program = candidate.program
        compiled = compiler(program.function)
        assert_same(program.function, compiled, program.make_inputs, backward=candidate.backward, calls=1)

    def shrink(self, candidate: Sample, fails: Any, attempts: int) -> Sample:
        """The smallest of the samples that fails, without its backward where that fails too."""
        from turret.testing.corpus.op_table import samples

        case, device = candidate.case, candidate.device
        numbered = itertools.islice(enumerate(samples(case, 20, device)), attempts)
        smaller = [(number, s) for number, s in numbered if s.size < candidate.program.size]
        for backward in dict.fromkeys(("none", candidate.backward)):
            for number, program in sorted(smaller, key=lambda pair: pair[1].size):
                sample = Sample(case, number, program, backward, device)
                if observe(program.function, program.make_inputs(), backward).error is None and fails(sample):
                    return sample
            same = attrs.evolve(candidate, backward=backward)
            if backward != candidate.backward and fails(same):
                return same
        return candidate

    def source(self, candidate: Sample) -> str:
        case, program = candidate.case, candidate.program
        commented = "\n".join(f"    # {line}" for line in program.source.splitlines())
        return (
            "import itertools\n\nfrom turret.testing.kit.levels.ops import table\n"
            "from turret.testing.corpus.op_table import samples\n\n\n"
            f"def main():\n    case = table()[{case.id!r}]\n"
            f"    sample = next(itertools.islice(samples(case, 20, {candidate.device!r}), {candidate.number}, None))\n"
            f"{commented}\n"
            "    compiled = subject.compile(sample.function)\n"
            "    assert_same(sample.function, compiled, sample.make_inputs, "
            f"backward={candidate.backward!r}, calls=1)\n"
        )
