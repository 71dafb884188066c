"""An exception of the program's names the lines that eager names, whichever way the frame was captured."""

from __future__ import annotations

import json
import traceback

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

X = torch.ones(3)


def helper(x, raises=True):
    print("", end="")
    if raises:
        raise ValueError("of the program")
    return x


def called_behind_a_graph(x):
    y = x + 1
    helper(y)
    return y * 2


def raised_after_a_break(x):
    y = x + 1
    helper(x, raises=False)
    z = y * 2
    raise KeyError(z.shape[0])


def c_function(x):
    y = x + 1
    return json.loads("{bad"), y


def operation_that_fakes_refuse(x):
    y = x + 1
    print("", end="")
    return y.view(7)


def operation_of_two(x):
    y = helper(x, raises=False) * 2
    return y + torch.ones(5)


def item(x):
    y = x + 1
    held = {"a": y}
    return held[str(y.sum().item())]


def in_a_block(x):
    y = x * 2
    with torch.no_grad():
        y = y + helper(y)
    return y


def through_a_handler(x):
    y = x * 2
    try:
        helper(y)
    except KeyError:
        y = y + 1
    finally:
        y = y + helper(y, raises=False)
    return y


def raised_anew(x):
    y = x * 2
    try:
        helper(y)
    except ValueError as error:
        raise RuntimeError("anew") from error


def nested(x):
    y = x + 1
    return called_behind_a_graph(y)


def while_the_graph_runs(x):
    y = x + 1
    return y[torch.tensor([9])]


PROGRAMS = (
    called_behind_a_graph, raised_after_a_break, c_function, operation_that_fakes_refuse, operation_of_two, item,
    in_a_block, through_a_handler, raised_anew, nested, while_the_graph_runs,
)  # fmt: skip


def places(function):
    """The frames of this file that a call's exception, and its cause, came through, and what was raised."""
    found = []
    with pytest.raises(Exception) as raised:
        function(X)
    error = raised.value
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [(f.name, f.lineno, f.line) for f in frames if f.filename == __file__ and f.name != "places"]
        found.append((type(error), str(error), own))
        error = error.__cause__
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_tracebacks_name_the_lines_of_the_program(program):
    observed = Observed(program)
    expected = places(program)
    for _ in range(3):
        assert places(observed) == expected


def test_a_handler_of_the_program_sees_its_lines():
    def program(x):
        y = x + 1
        try:
            helper(y)
        except ValueError as error:
            trace = error.__traceback__
            return y, [f.lineno for f in traceback.extract_tb(trace) if f.filename == __file__][0]

    observed = Observed(program)
    for _ in range(2):
        assert observed(X)[1] == program(X)[1]
