"""Random functions, captured, do what they do plainly (``functions.py`` runs many more of them)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.fuzz import function_data_calls, functions
from tests.fuzz.function_capture import Watch
from tests.fuzz.function_data import without_line
from tests.fuzz.function_prelude import MARK
from tests.fuzz.function_shrink import shrink
from tests.fuzz.function_writer import program_of
from tests.fuzz.functions import data_program, fault_of, fault_of_data


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_functions_do_what_they_do_plainly(first: int):
    for seed in range(first, first + 10):
        text = program_of(seed)
        fault = fault_of(text, seed, Watch(), with_compiler=False)
        assert fault is None, f"seed {seed}: {fault}\n{text.partition(MARK)[2]}"


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_functions_of_numbers_of_data_do_as_one_graph_what_they_do_plainly(first: int):
    watch = Watch()
    for seed in range(first, first + 8):
        text = data_program(seed)
        fault = fault_of_data(text, seed, watch)
        assert fault is None, f"seed {seed}: {fault}\n{text.partition(MARK)[2]}"
    assert len(watch.events.get("refused program", ())) < 4


def data_program_with(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"{data_program(0).partition(MARK)[0]}{MARK}def program(x, w, m, t):\n{body}entry = program\n"


def test_a_wrong_number_of_data_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def wrong(function: Callable, *_: object) -> Callable:
        return lambda *args: [value + 1 for value in function(*args)]

    for way in ("captured_whole", "compiled_whole"):
        monkeypatch.setattr(function_data_calls, way, wrong)
    assert "is not" in (fault_of_data(data_program_with("return [t[0].item()]"), 0, Watch()) or "")


def test_a_program_that_is_no_single_graph_is_refused_for_the_line_at_fault():
    watch = Watch()
    text = data_program_with("i1 = int(m[0])", "v2 = x * len(str(i1))", "return (v2,)")
    assert fault_of_data(text, 0, watch) is None
    (reason,) = watch.events["refused program"]
    assert "v2 = x * 1" in (without_line(text, reason) or "")


def test_a_random_function_is_the_same_for_the_same_seed():
    assert program_of(7) == program_of(7) != program_of(8)


def program_with(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return (
        f"{program_of(0).partition(MARK)[0]}{MARK}def program(x, **rest):\n{body}entry = program\nBY_KEYWORD = False\n"
    )


def test_what_has_no_end_plainly_either_is_no_difference():
    assert fault_of(program_with("while True: pass"), 0, Watch(), with_compiler=False, seconds=0.5) is None


def test_what_has_no_end_when_captured_alone_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def without_end(function: Callable, watch: Watch) -> Callable:
        return lambda *args, **named: time.sleep(60)

    monkeypatch.setattr(functions, "captured", without_end)
    text = program_with("return x")
    assert fault_of(text, 0, Watch(), with_compiler=False, seconds=0.5) == "the program takes too long"


def test_a_difference_is_noticed_and_shrunk():
    text = program_with("y = x + 1", "z = y * 2", "return z, __debug__")

    def fails(candidate: str) -> bool:
        return "return" in candidate.partition(MARK)[2] and "x + 1" in candidate

    assert shrink(text, fails).partition(MARK)[2].count("\n") < 4
