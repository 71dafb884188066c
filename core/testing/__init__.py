"""The testing kit: drawn programs, a checker against eager, a conformance run for plugins and for any compiler.

    turret.testing.assert_same(f, turret.compile(f), lambda: (torch.randn(3),))
    report = turret.testing.conformance(plugins=[MyPlugin()])
    pytest -p turret.testing.pytest_plugin --turret-plugin my_package:MyPlugin

A compiler is any callable that takes a function and returns one that must behave the same.  ``programs()`` is a
hypothesis strategy (install hypothesis to use it); everything else needs torch alone.  Names load on first use: pytest
imports this package wherever Turret is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for tools that read types
    from turret.testing.comparison.checker import Mismatch as Mismatch
    from turret.testing.comparison.checker import assert_same as assert_same
    from turret.testing.comparison.checker import check as check
    from turret.testing.comparison.compare import Difference as Difference
    from turret.testing.comparison.outcome import Outcome as Outcome
    from turret.testing.comparison.outcome import Report as Report
    from turret.testing.corpus.builder import DTYPES as DTYPES
    from turret.testing.corpus.builder import Features as Features
    from turret.testing.corpus.builder import Spoiled as Spoiled
    from turret.testing.corpus.chooser import RandomChooser as RandomChooser
    from turret.testing.corpus.draw import draw_program as draw_program
    from turret.testing.corpus.program import Inputs as Inputs
    from turret.testing.corpus.program import InputSpec as InputSpec
    from turret.testing.corpus.program import Program as Program
    from turret.testing.corpus.program import Step as Step
    from turret.testing.corpus.program import StorageSpec as StorageSpec
    from turret.testing.corpus.program import merge as merge
    from turret.testing.corpus.strategies import programs as programs
    from turret.testing.kit.levels.programs import program_of_seed as program_of_seed
    from turret.testing.kit.runs import conformance as conformance
    from turret.testing.kit.shrinking import shrink as shrink
    from turret.testing.kit.subject import Compiler as Compiler
    from turret.testing.kit.subject import Subject as Subject
    from turret.testing.kit.subject import object_of as object_of
    from turret.testing.loops.interpreter import run_program as run_program

_HOMES = {
    "DTYPES": "corpus.builder",
    "Compiler": "kit.subject",
    "Difference": "comparison.compare",
    "Features": "corpus.builder",
    "InputSpec": "corpus.program",
    "Inputs": "corpus.program",
    "Mismatch": "comparison.checker",
    "Outcome": "comparison.outcome",
    "Program": "corpus.program",
    "RandomChooser": "corpus.chooser",
    "Report": "comparison.outcome",
    "Spoiled": "corpus.builder",
    "Step": "corpus.program",
    "StorageSpec": "corpus.program",
    "Subject": "kit.subject",
    "assert_same": "comparison.checker",
    "check": "comparison.checker",
    "conformance": "kit.runs",
    "draw_program": "corpus.draw",
    "merge": "corpus.program",
    "object_of": "kit.subject",
    "program_of_seed": "kit.levels.programs",
    "programs": "corpus.strategies",
    "run_program": "loops.interpreter",
    "shrink": "kit.shrinking",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
