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
from typing import Any

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
