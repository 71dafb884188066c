"""Level ``cases``: programs written by hand, for mutation, aliasing, gradients and numbers, against eager."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import attrs

from turret.testing.comparison.checker import assert_same
from turret.testing.comparison.observe import observe
from turret.testing.corpus.cases import CASES, Case
from turret.testing.kit.levels.level import Level, Settings
from turret.testing.kit.subject import Compiler, Subject


@attrs.frozen
class CaseCandidate:
    """A case on a device."""

    case: Case
    device: str


class Cases(Level):
    """Items are the names of the cases."""

    name = "cases"

    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        lacking = set()
        if settings.features is not None:
            lacking = {name for name in ("gradients", "mutation") if not getattr(settings.features, name)}
        names = [case.name for case in CASES.values() if not case.needs & lacking]
        return names[: settings.counts.get(self.name, len(names))]

    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[CaseCandidate]:
        yield CaseCandidate(CASES[item], subject.device)

    def eager_error(self, candidate: CaseCandidate, subject: Subject) -> BaseException | None:
        """Only of what the device lacks: an error may be what a case is about."""
        case = candidate.case
        found = observe(case.function, case.make_inputs(0, candidate.device)).error
        return found if isinstance(found, NotImplementedError) else None

    def try_out(self, candidate: CaseCandidate, compiler: Compiler, subject: Subject) -> None:
        case = candidate.case
        assert_same(case.function, compiler(case.function), lambda call: case.make_inputs(call, candidate.device))

    def source(self, candidate: CaseCandidate) -> str:
        case = candidate.case
        text = inspect.getsource(case.function)
        return (
            "import torch\nfrom torch import Tensor\nfrom torch.nn import functional as F\nfrom typing import Any\n\n"
            f"from turret.testing.corpus.cases import CASES\n\n\n{text[text.index('def ') :]}\n\n"
            f"def main():\n    inputs = CASES[{case.name!r}].make_inputs\n"
            f"    compiled = subject.compile({case.name})\n"
            f"    assert_same({case.name}, compiled, lambda call: inputs(call, {candidate.device!r}))\n"
        )
