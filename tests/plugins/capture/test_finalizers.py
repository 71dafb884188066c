"""Objects whose class has a ``__del__`` are made, and end when eager's do: nothing of a program gets lost."""

from __future__ import annotations

import contextlib
import copy
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.frames import frame_hook

LOG: list[Any] = []
BOX = types.SimpleNamespace(held=None)


class Noted:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        LOG.append(self.name)


class NotedList(list):
    def __del__(self) -> None:
        LOG.append(len(self))


def waiting():
    try:
        yield 1
    finally:
        LOG.append("left")


def let_go_at_once(x):
    Noted("a")
    LOG.append("then")
    return x + 1


def let_go_by_a_helper(x):
    def helper(x):
        held = Noted("a")
        return x + len(held.name)

    y = helper(x)
    LOG.append("then")
    return y


def replaced(x):
    held = Noted("a")
    LOG.append("then")
    held = Noted("b")
    LOG.append("then")
    return x + 1, held


def returned(x):
    return x + 1, Noted("a")


def of_a_list(x):
    held = NotedList([x, x])
    LOG.append("then")
    return x + len(held)


def copied(x):
    held = Noted("a")
    other = copy.copy(held)
    LOG.append("then")
    del held
    LOG.append(other.name)
    return x + 1


def held_by_another(x):
    BOX.held = Noted("a")
    LOG.append("then")
    BOX.held = Noted("b")
    LOG.append("then")
    BOX.held = None
    return x + 1


def over_a_break(x):
    held = Noted("a")
    turret.graph_break()
    LOG.append("then")
    held.name = "b"
    return x + 1


def deleted_behind_a_break(x):
    held = [Noted("a")]
    turret.graph_break()
    LOG.append("then")
    held.pop()
    LOG.append("later")
    return x + 1


def kept_by_an_exception(x):
    def helper(x):
        held, generator = Noted("a"), waiting()
        next(generator)
        turret.graph_break()
        return held, x[[9]]

    try:
        helper(x)
    except IndexError:
        LOG.append("caught")
    LOG.append("then")
    return x + 1


def kept_by_an_exception_of_c(x):
    held = Noted("a")
    with contextlib.suppress(ValueError):
        int("no number")
    y = x + 1
    LOG.append("then")
    int("no number")
    return y, held


def put_into_a_variable_that_nothing_reads(x):
    y = x + 1
    kept = []
    held = Noted("a")
    kept.append(held)
    held = None
    LOG.append([held, Noted("b")][0] is held)
    LOG.append("then")
    return y * 2


HOLDERS: dict[str, Callable] = {
    "list": lambda v: [v],
    "tuple": lambda v: (1, v),
    "dict": lambda v: {1: v},
    "key": lambda v: {v: 1},
    "set": lambda v: {v},
    "nested": lambda v: [[{1: (v,)}]],
    "iterator": lambda v: iter([v]),
    "reversed": lambda v: reversed([v]),
    "enumerate": lambda v: enumerate([v]),
    "zip": lambda v: zip([v], [1], strict=True),
    "map": lambda v: map(str, [v]),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("later", [False, True])
def test_what_a_variable_holds_that_nothing_reads_ends_with_the_frame(holder: str, later: bool) -> None:
    def program(x):
        y = x + 1
        kept: Any = []
        held = Noted("a")
        if later:
            kept.append(HOLDERS[holder](held))
        else:
            kept = HOLDERS[holder](held)
        held = None
        LOG.append([held, Noted("b")][0] is held)
        LOG.append("then")
        return y * 2

    found = []
    for function in (program, Observed(program)):
        LOG.clear()
        function(torch.ones(3))
        found.append(list(LOG))
    assert found[0] == found[1] == ["b", True, "then", "a"]


@pytest.mark.parametrize(
    "function",
    [let_go_at_once, let_go_by_a_helper, replaced, returned, of_a_list, copied, held_by_another, over_a_break,
     deleted_behind_a_break, put_into_a_variable_that_nothing_reads, kept_by_an_exception, kept_by_an_exception_of_c],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_objects_end_when_those_of_eager_end(function: Callable) -> None:
    def run(called: Callable) -> list[Any]:
        LOG.clear()
        try:
            result = called(torch.ones(3))
            LOG.append("back")
            del result
        except ValueError:
            LOG.append("raised")
        LOG.append("end")
        return list(LOG)

    expected = run(function)
    compiled = Observed(function)
    assert [run(compiled) for _ in range(3)] == [expected] * 3


def test_what_is_returned_breaks_nothing() -> None:
    compiled = Observed(returned, fullgraph=True)
    y, noted = compiled(torch.ones(3))
    assert noted.name == "a" and y.tolist() == [2, 2, 2] and len(compiled.graphs) == 1


def test_tracebacks_show_the_variables_that_they_keep() -> None:
    def function(x):
        held, other = waiting(), 3
        next(held)
        return x[[9]], other

    compiled = Observed(function)
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            compiled(torch.ones(3))
        *_, (frame, line) = traceback.walk_tb(caught.tb)
        assert frame.f_code.co_name == "function" and line == function.__code__.co_firstlineno + 3
        assert set(frame.f_locals) == {"held"} and frame.f_back is None
        del frame, caught


def test_frames_for_tracebacks_are_made_of_code_without_variables_alone() -> None:
    native = frame_hook.load()
    with pytest.raises(TypeError, match="whose variables are all in a dict"):
        native.frame(returned.__code__, {}, {})
    made = native.frame(compile("1", "file", "exec"), {"__name__": "m"}, {"a": 1})
    assert made.f_locals == {"a": 1} and made.f_code.co_filename == "file" and made.f_back is None
