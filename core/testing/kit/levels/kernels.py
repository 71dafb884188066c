"""Level ``kernels``: random loop programs through schedule, code generator and device, against the loop interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from turret.testing.comparison.checker import Mismatch
from turret.testing.comparison.compare import Difference
from turret.testing.corpus.chooser import ListChooser, RandomChooser, RecordingChooser, smaller_choices
from turret.testing.kit.levels.level import REFUSED, SEED, Level, Settings, Symptom, symptom_of
from turret.testing.kit.subject import Compiler, Subject
from turret.testing.loops.programs import DrawnLoops, draw_loops

SIZES = {"small": 24, "medium": 200, "large": 2000}
HOOKS = ("turret_schedule", "turret_fusion_score", "turret_ir_pass", "turret_codegen", "turret_device")
"""Whom a loop program meets."""


@attrs.frozen
class Choices:
    """Loops by the choices that they are drawn from."""

    made: tuple[int, ...]
    symbolic: bool

    def drawn(self) -> DrawnLoops:
        return draw_loops(ListChooser(self.made), self.symbolic)


class Kernels(Level):
    """Items are seeds; every second one has sizes that are known when it runs."""

    name = "kernels"
    has_eager = False

    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        return settings.seeds(settings.count(self.name, SIZES))

    def why_skipped(self, item: str, subject: Subject) -> str:
        if not subject.is_turret:
            return "needs a plugin of Turret's"
        if subject.made and not any(subject.implements(hook) for hook in HOOKS):
            return f"no plugin implements one of {', '.join(HOOKS)}"
        return ""

    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[Choices]:
        seed = int(item.removeprefix(SEED))
        chooser, symbolic = RecordingChooser(RandomChooser(seed)), seed % 2 == 1
        draw_loops(chooser, symbolic)
        yield Choices(tuple(chooser.made), symbolic)

    def try_out(self, candidate: Choices, compiler: Compiler, subject: Subject) -> None:
        check_loops(candidate.drawn(), subject)

    def symptom(self, candidate: Choices, subject: Subject) -> Symptom | None:
        found = symptom_of(lambda: check_loops(candidate.drawn(), subject))
        if found is None or not REFUSED.search(found.message):
            return found
        subject.observer.fallbacks.append(found.message)
        return None

    def shrink(self, candidate: Choices, fails: Callable[[Any], bool], attempts: int) -> Choices:
        progress = True
        while progress and attempts > 0:
            progress = False
            for choices in smaller_choices(candidate.made):
                smaller = _redrawn(choices, candidate.symbolic)
                if smaller is None or not _simpler(smaller, candidate):
                    continue
                attempts -= 1
                if fails(smaller):
                    candidate, progress = smaller, True
                    break
                if attempts <= 0:
                    break
        return candidate

    def source(self, candidate: Choices) -> str:
        told = "\n".join(f"    # {line}" for line in str(candidate.drawn().program()).splitlines())
        return (
            "from turret.testing.corpus.chooser import ListChooser\n"
            "from turret.testing.kit.levels.kernels import check_loops\n"
            "from turret.testing.loops.programs import draw_loops\n\n\n"
            f"def main():\n{told}\n"
            f"    loops = draw_loops(ListChooser({list(candidate.made)}), symbolic={candidate.symbolic})\n"
            "    check_loops(loops, subject)\n"
        )


def check_loops(loops: DrawnLoops, subject: Subject) -> None:
    """Compile loops with the subject's plugins and compare with the interpreter; raises ``Mismatch``."""
    import turret
    from turret.testing.loops.interpreter import run_program

    expected = run_program(loops.program(), loops.arguments())
    program = loops.program(subject.device)
    plugins, options = [*subject.to_give, subject.observer], {"cache": False, **subject.options}
    schedule = turret.schedule(program, plugins=plugins, options=options)
    plan = turret.codegen(schedule, plugins=plugins, options=options)
    run = turret.load(plan, plugins=plugins, options=options)
    found = run(loops.arguments(subject.device))
    differing = [d for k, (a, b) in enumerate(zip(expected, found, strict=True)) for d in _differences(k, a, b, loops)]
    if differing:
        raise Mismatch(differing, 0, str(loops.program()), None)


def _differences(number: int, expected: torch.Tensor, found: torch.Tensor, loops: DrawnLoops) -> Iterator[Difference]:
    where, got = f"output {number}", found.cpu()
    for what in ("dtype", "shape"):
        if getattr(expected, what) != getattr(got, what):
            yield Difference(where, what, str(getattr(expected, what)), str(getattr(got, what)))
            return
    if expected.dtype.is_floating_point:
        relative = 3e-2 if loops.has_half else 2e-4
        right = torch.isclose(got.double(), expected.double(), rtol=relative, atol=2e-3, equal_nan=True)
    else:
        right = got == expected
    if not bool(right.all()):
        at = tuple(int(i) for i in (~right).nonzero()[0])
        detail = f"{int((~right).sum())} of {right.numel()} elements; first at {list(at)}"
        yield Difference(where, "values", str(expected[at].item()), str(got[at].item()), detail)


def _redrawn(choices: Sequence[int], symbolic: bool) -> Choices | None:
    """The loops that choices stand for, with the choices that were made; None where they stand for none."""
    chooser = ListChooser(choices)
    try:
        draw_loops(chooser, symbolic)
    except (IndexError, RuntimeError, ValueError):
        return None
    return Choices(tuple(chooser.made), symbolic)


def _simpler(one: Choices, other: Choices) -> bool:
    return (len(one.made), one.made) < (len(other.made), other.made)
