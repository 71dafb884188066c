"""Drawn programs through ``turret.compile`` must show their caller what eager shows; a small fixed budget.

The long run is ``tests/fuzz/run.py``; ``REGRESSIONS`` holds seeds that once failed there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import turret
from tests.fuzz.compilers import TURRET, compiler_of
from turret.testing import Features, Program, check, program_of_seed, programs
from turret.testing.kit.levels.programs import check_seeds

REGRESSIONS = (
    3000459,
    3000604,
    3000688,
    3000757,
    3001237,
    3001667,
    3001806,
    9002447,
    9002570,
    9003176,
    9003471,
    9004269,
    9004440,
    9004466,
    9008328,
    30000201,
    30001750,
    30004720,
    30007108,
    30017887,
    40002850,
    40007430,
    40013493,
    40017555,
)


def compiler(function: Callable) -> Callable:
    return turret.compile(function, options={"on_error": "raise", "check_bounds": True})


PLAIN = Features(layouts=False, settings=False, complex=False)
"""What was drawn when the seeds of ``REGRESSIONS`` failed."""


def test_programs_of_fixed_seeds_match_eager():
    checked = check_seeds(range(1_000_000, 1_000_040), compiler)
    assert not checked.failures, str(checked.failures)


@pytest.mark.parametrize("name", TURRET[1:])
def test_programs_of_fixed_seeds_match_eager_with_outsiders_among_the_stages(name: str):
    checked = check_seeds(range(1_100_000, 1_100_012), compiler_of(name, {"check_bounds": False}))
    assert not checked.failures, str(checked.failures)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_programs_that_once_failed_match_eager(seed: int):
    check(program_of_seed(seed, PLAIN), compiler)


@given(programs(Features(max_steps=5)))
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
def test_programs_that_hypothesis_draws_match_eager(program: Program):
    check(program, compiler)
