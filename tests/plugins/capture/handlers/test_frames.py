"""What a program reads of its frames and global variables is what it reads as Python, in the graph and around a break."""

from __future__ import annotations

import collections
import enum
import inspect
import sys
import traceback
import typing
import unittest

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import CaptureError

X = torch.arange(4.0)
FACTOR = 3


def own_frame(x):
    here = sys._getframe()
    return x + 1, here.f_code.co_name, inspect.currentframe().f_code.co_name, here.f_globals["__name__"]


def of_a_helper(x):
    return x + 1, _names()


def _names():
    return sys._getframe(0).f_code.co_name, inspect.currentframe().f_lineno


def in_a_loop(x):
    return x + 1, [sys._getframe().f_lineno for _ in range(2)]


def makes_a_type(x):
    return x + 1, typing.TypeVar("T").__module__, collections.namedtuple("Pair", "one two").__module__


def reads_globals(x):
    return x * globals()["FACTOR"], "FACTOR" in globals(), globals().get("missing", 4), globals() is globals()


def asks_for_what_is_missing(x):
    try:
        return globals()["missing"]
    except KeyError as error:
        return x + 1, error.args


def sets_globals(x):
    globals()["FACTOR"] = FACTOR + 1
    globals()["new"] = 5
    result = x * FACTOR + new  # noqa: F821
    del globals()["new"]
    globals()["FACTOR"] = 3
    return result


WHOLE = [own_frame, of_a_helper, in_a_loop, makes_a_type, reads_globals, asks_for_what_is_missing, sets_globals]


@pytest.mark.parametrize("program", WHOLE)
def test_frames_and_globals_are_read_in_one_graph(program):
    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert_same(observed(X), program(X))
    assert "new" not in globals() and FACTOR == 3


def callers_name(x):
    return x + 1, _caller()


def _caller():
    return sys._getframe(1).f_code.co_name


def own_variables(x):
    return x + 1, sys._getframe().f_locals["x"] is x


def frame_across_a_break(x):
    here = sys._getframe()
    print(end="")
    return x + 1, here.f_code.co_name


def after_a_break(x):
    y = x + 1
    print(end="")
    return y, sys._getframe().f_code.co_name, sys._getframe().f_lineno


def from_a_function_with_a_break(x):
    return x + 1, _caller_after_a_break()


def _caller_after_a_break():
    print(end="")
    caller = sys._getframe(1)
    return caller.f_code.co_name, caller.f_globals["__name__"]


def whole_stack(x):
    return x + 1, inspect.stack()[0].function


def class_behind_a_break(x):
    made = type("Made", (), {"factor": 2})
    return x * made().factor, made.__module__


def new_enumeration(x):
    made = enum.Enum("Made", "ONE TWO")
    return x * made.TWO.value, made.__module__


@pytest.mark.parametrize(
    "program",
    [
        callers_name, own_variables, frame_across_a_break, after_a_break, from_a_function_with_a_break, whole_stack,
        class_behind_a_break, new_enumeration,
    ],
)  # fmt: skip
def test_compiled_code_is_not_what_the_program_finds(program):
    observed = Observed(program)
    for _ in range(2):
        assert_same(observed(X), program(X))
    with pytest.raises(CaptureError):
        Observed(program, fullgraph=True)(X)


def test_an_enumeration_is_another_one_in_each_call():
    def program(x):
        made = enum.Enum("Made", "ONE TWO")
        return x + 1, made.ONE

    observed = Observed(program)
    assert observed(X)[1] is not observed(X)[1]


def dict_of_variables(x, k=3):
    y = x * 2
    found = locals()
    later = 4
    return sorted(found), found["y"], found["k"], later


class Kept:
    def __init__(self, first, second):
        given = locals()
        given.pop("self")
        self.given = given


def parameters_of_a_constructor(x):
    kept = Kept(x, 2)
    return list(kept.given), kept.given["first"] * kept.given["second"]


def cells_and_free_variables(x):
    a = 1

    def inner(b):
        c = a + b
        return sorted(locals()), locals()["a"], c

    return x + 1, inner(3), sorted(vars()), [n for n in ("a", "b") if n in locals()]


def one_dict_or_many(x):
    a = 1
    first = locals()
    first["more"] = 5
    b = 2
    second = locals()
    del a
    third = locals()
    return x + b, first is second, sorted(first), sorted(second), sorted(third)


def unbound_variables(x):
    for n in ():
        pass
    return x + 1, "n" in locals(), [sorted(k for k in locals() if k != ".0") for i in range(1)]


LOCALS = [
    dict_of_variables, parameters_of_a_constructor, cells_and_free_variables, one_dict_or_many, unbound_variables
]  # fmt: skip


@pytest.mark.parametrize("program", LOCALS)
def test_locals_are_the_variables_that_are_bound(program):
    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert_same(observed(X), program(X))


def test_locals_behind_a_break_are_the_programs():
    def program(x, log):
        y = x + 1
        log.append(float(y.sum()))
        z = y * 2
        return sorted(locals()), locals()["x"], z

    observed = Observed(program)
    assert_same(observed(X, []), program(X, []))


class Case(unittest.TestCase):
    pass


CASE = Case()


def raises_an_index_error(x):
    raise IndexError(f"of {x.dim()} dimensions")


def asserts_that_something_raises(x):
    with CASE.assertRaises(IndexError) as found:
        raises_an_index_error(x)
    with CASE.assertRaisesRegex(IndexError, "of 1"):
        raises_an_index_error(x)
    CASE.assertRaises(IndexError, raises_an_index_error, x)
    try:
        with CASE.assertRaises(ValueError):
            x = x + 1
    except AssertionError as error:
        return x * 2, str(found.exception), found.exception.__traceback__, str(error)


def clears_frames_of_its_own(x):
    try:
        raises_an_index_error(x)
    except IndexError as error:
        traceback.clear_frames(error.__traceback__)
    return x + 1


@pytest.mark.parametrize("program", [asserts_that_something_raises, clears_frames_of_its_own])
def test_clearing_the_frames_of_a_traceback_made_in_the_call_is_part_of_a_full_graph(program):
    assert_same(Observed(program, fullgraph=True)(X), program(X))


def test_frames_of_a_traceback_from_before_the_call_are_cleared():
    def program(x, trace):
        y = x + 1
        traceback.clear_frames(trace)
        return y * 2

    def made():
        held = object()
        raise ValueError(held)

    try:
        made()
    except ValueError as error:
        trace = error.__traceback__
    assert "held" in trace.tb_next.tb_frame.f_locals
    observed = Observed(program)
    assert_same(observed(X, trace), program(X, trace))
    assert observed.breaks
    assert not trace.tb_next.tb_frame.f_locals
