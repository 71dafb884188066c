"""Random functions, captured, do what they do plainly (``functions.py`` runs many more of them)."""

from __future__ import annotations

import pytest
from function_capture import Watch
from function_prelude import MARK
from function_shrink import shrink
from function_writer import program_of
from functions import fault_of


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_functions_do_what_they_do_plainly(first: int):
    for seed in range(first, first + 10):
        text = program_of(seed)
        fault = fault_of(text, seed, Watch(), with_compiler=False)
        assert fault is None, f"seed {seed}: {fault}\n{text.partition(MARK)[2]}"


def test_a_random_function_is_the_same_for_the_same_seed():
    assert program_of(7) == program_of(7) != program_of(8)


def test_a_difference_is_noticed_and_shrunk():
    head = program_of(0).partition(MARK)[0]
    text = (
        head
        + MARK
        + "def program(x, **rest):\n    y = x + 1\n    z = y * 2\n    return z, __debug__\nentry = program\n"
    )

    def fails(candidate: str) -> bool:
        return "return" in candidate.partition(MARK)[2] and "x + 1" in candidate

    assert shrink(text, fails).partition(MARK)[2].count("\n") < 4
