"""The testing kit: drawn programs, a checker against eager, a conformance run for any compiler.

    turret.testing.assert_same(f, turret.compile(f), lambda: (torch.randn(3),))
    report = turret.testing.conformance(my_compiler, programs=500)

A compiler is any callable that takes a function and returns one that must behave the same.  ``programs()`` is a
hypothesis strategy (install hypothesis to use it); everything else needs torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turret.testing.builder import DTYPES, Features, Spoiled
from turret.testing.check import Compiler, Mismatch, assert_same, check
from turret.testing.chooser import RandomChooser
from turret.testing.compare import Difference
from turret.testing.conformance import ConformanceReport, Failure, conformance, program_of_seed
from turret.testing.draw import draw_program
from turret.testing.program import Inputs, InputSpec, Program, Step, StorageSpec, merge
from turret.testing.shrink import shrink

if TYPE_CHECKING:
    from turret.testing.strategies import programs

__all__ = [
    "DTYPES",
    "Compiler",
    "ConformanceReport",
    "Difference",
    "Failure",
    "Features",
    "InputSpec",
    "Inputs",
    "Mismatch",
    "Program",
    "RandomChooser",
    "Spoiled",
    "Step",
    "StorageSpec",
    "assert_same",
    "check",
    "conformance",
    "draw_program",
    "merge",
    "program_of_seed",
    "programs",
    "shrink",
]


def __getattr__(name: str) -> Any:
    if name == "programs":
        from turret.testing.strategies import programs

        return programs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
