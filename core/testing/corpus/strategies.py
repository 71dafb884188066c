"""Hypothesis strategies of programs."""

from __future__ import annotations

import functools

from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.strategies import DrawFn, SearchStrategy

from turret.testing.corpus.builder import Features, Spoiled
from turret.testing.corpus.chooser import DrawnChooser
from turret.testing.corpus.draw import draw_program
from turret.testing.corpus.program import Program


@functools.cache
def _integers(low: int, high: int) -> SearchStrategy[int]:
    return st.integers(low, high)


@st.composite
def programs(draw: DrawFn, features: Features | None = None) -> Program:
    """Programs that run in eager, with their inputs; see ``Features`` for what they may contain."""
    chooser = DrawnChooser(lambda low, high: draw(_integers(low, high)))
    try:
        return draw_program(chooser, features)
    except Spoiled as error:
        raise UnsatisfiedAssumption from error
