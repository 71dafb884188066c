"""What drawn programs ask of autograd is eager's in compiled code; a small budget, and proof that faults are found.

The long run is ``tests/fuzz/gradients.py``.
"""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import gradient_programs
from tests.fuzz.gradient_programs import Program, difference, draw, shrunk
from tests.fuzz.gradients import examine
from turret.plugins.capture.autograd import backward


@settings(max_examples=20)
@given(st.integers(30_000, 34_000))
def test_gradients_of_drawn_programs_are_eagers(seed: int) -> None:
    program = draw(seed)
    fault = examine(program)
    assert not fault, f"{program.source}\n{fault}"


def test_a_program_comes_of_its_seed() -> None:
    assert all(draw(seed) == draw(seed) for seed in range(50))


def test_a_gradient_that_stops_at_the_arguments_is_found() -> None:
    statements = "v1 = a.sin()", "(v2,) = torch.autograd.grad((a * c).sum(), a)"
    program = Program(statements, "a * 2", ("a", "v1", "v2"))
    assert not examine(program)
    with mock.patch.object(backward, "_check_that_it_stays", lambda *given: None):
        assert examine(program).startswith("part 2 is")
        small = shrunk(program, lambda p: bool(examine(p)), attempts=4)
    assert small.statements == statements[1:]


@pytest.mark.parametrize("mine", [["RuntimeError"], [3], []])
def test_what_differs_in_kind_or_number_is_told(mine: list) -> None:
    program = Program((), "a", ("a",))
    with mock.patch.object(gradient_programs, "outcome", side_effect=[[2], mine]):
        assert difference(program, {})
