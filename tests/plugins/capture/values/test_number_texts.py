"""Texts of numbers that depend on data are part of full graphs where nothing reads them: Python writes them behind it."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from tests.plugins.capture.stored_lab import Watch

X = torch.tensor([0.125, -2.0, 3.75])


def of_floats(x):
    total = x.sum().item()
    return f"{total:.2f}", f"{total}", "%.3f and %s" % (total, x[0].item()), "{:>9.1f} {n!r}".format(total, n=total)


def of_ints_and_bools(x):
    number, flag = (x > 0).sum().item(), (x > 9).any().item()
    return f"{number:04d} {flag}", str(number), repr(flag), "%d" % number, f"{number / 4:.2f}"


def joined(x):
    parts = [f"{v:.1f}" for v in x.tolist()]
    text = ", ".join(parts)
    parts.append("late")
    return text, parts, "[" + text + "]", f"{text:>40}", repr(text), str(text)


def of_tensors_that_change(x):
    total = x.sum()
    text = f"{total:.2f} {total}"
    total.add_(5)
    return text, total


def in_a_loop(x):
    lines = []
    for step in range(3):
        x = x * 1.5
        lines.append(f"{step}: {x.mean().item():.3f}")
    return x, "\n".join(lines)


def of_rounded_numbers(x):
    total = x.sum().item()
    return f"{round(total, 2)} {round(total)}", round(total, 1), round((x > 0).sum().item()), round(total, None)


PROGRAMS = [of_floats, of_ints_and_bools, joined, of_tensors_that_change, in_a_loop, of_rounded_numbers]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_they_are_those_of_each_call(program):
    observed = Observed(program, fullgraph=True)
    for x in (X, X / 3, X * -7):
        assert_same(observed(x), program(x))
    assert len(observed.graphs) <= 2


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_captures_of_them_are_stored_for_other_processes(program, tmp_path):
    watch = Watch()
    turret.compile(program, fullgraph=True, plugins=[watch], options={"cache_dir": str(tmp_path)})(X)
    assert not any("in every process" in message for kind, _, message in watch.events if kind == "perf_hint")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, 2.5, 1e300])
def test_numbers_are_rounded_as_python_rounds_them(number):
    observed = Observed(lambda x: round(x.item(), 2), fullgraph=True)
    assert repr(observed(torch.tensor(number, dtype=torch.float64))) == repr(round(number, 2))


def test_they_are_kept_by_objects_from_before():
    class Logging(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lines = []

        def forward(self, x):
            self.last = f"{x.mean().item():.2f}"
            self.lines.append(self.last + "!")
            return x + 1

    module, expected = Logging(), Logging()
    observed = Observed(module, fullgraph=True)
    for x in (X, X * 2):
        assert_same(observed(x), expected(x))
    assert (module.last, module.lines) == (expected.last, expected.lines)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + len(f"{x.sum().item():.2f}"),
        lambda x: x + (f"{x.sum().item():.2f}" == "1.88"),
        lambda x: {f"{x.sum().item():.2f}": x + 1},
        lambda x: (x + 1, "%d" % x.sum().item()),  # raises for what is no number
    ],
)
def test_one_that_is_read_breaks_the_graph(program):
    observed = Observed(program)
    for x in (X, X * 100):
        assert_same(observed(x), program(x))


def test_a_format_that_does_not_fit_raises_where_the_program_can_catch_it():
    def program(x):
        try:
            return x, f"{x.sum().item():d}"
        except ValueError as error:
            return x + 1, str(error)

    assert_same(Observed(program)(X), program(X))
