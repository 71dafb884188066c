"""An exception of the program's names the lines that eager names, whichever way the frame was captured."""

from __future__ import annotations

import json
import logging
import traceback
import warnings

import pytest
import torch

import turret
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


def logged(x):
    y = x + 1
    logging.getLogger(__name__).warning("shape %s", y.shape)
    z = y * 2
    logging.getLogger(__name__).warning("again")
    return z


def warned(x):
    y = x + 1
    warnings.warn("of the program")
    return y * 2


def warning_of_a_caller(x):
    y = x + 1
    _deprecated()
    return y * 2


def _deprecated():
    warnings.warn("of a caller", DeprecationWarning, stacklevel=2)


class Places(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        self.found.append((record.pathname, record.lineno, record.funcName, record.getMessage()))


def seen(function):
    """The places that logs and warnings name."""
    handler = Places()
    logging.getLogger(__name__).addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(X)
    logging.getLogger(__name__).removeHandler(handler)
    own = [w for w in caught if not issubclass(w.category, turret.TurretWarning)]
    return handler.found, [(w.filename, w.lineno, str(w.message)) for w in own]


@pytest.mark.parametrize("program", [logged, warned, warning_of_a_caller], ids=lambda p: p.__name__)
def test_logs_and_warnings_name_the_lines_of_the_program(program):
    observed = Observed(program)
    expected = seen(program)
    assert any(expected)
    for _ in range(3):
        assert seen(observed) == expected


@pytest.mark.parametrize("program", [warned, warning_of_a_caller], ids=lambda p: p.__name__)
def test_warnings_of_whole_graphs_name_the_lines_of_the_program(program):
    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert seen(observed) == seen(program)


def test_a_line_of_the_program_warns_once_whichever_unit_runs_it():
    observed = Observed(warned)
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for n in (2, 3, 4):
            observed(torch.ones(n, 2))
            observed(torch.ones(2, n, dtype=torch.float64))
    assert [str(w.message) for w in caught] == ["of the program"]
