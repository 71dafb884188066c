"""Objects of classes written with pybind11: what their properties tell is read and guarded, all else is Python's."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.monitor

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.linspace(-1, 1, 8)
Settings = torch._C.BenchmarkConfig


def settings(iterations: int, path: str = "") -> Any:
    made = Settings()
    made.num_iters, made.profiler_output_path = iterations, path
    return made


def chosen(x, given):
    x = x.cos() if given.num_iters > 3 else x.sin()
    return x, given.num_iters, given.profiler_output_path


def test_what_a_property_tells_is_part_of_the_graph_and_guarded():
    observed = Observed(chosen, fullgraph=True)
    given = settings(5, "here")
    for one in (given, given, settings(2, "there"), settings(5, "here"), settings(5)):
        assert_same(observed(X, one), chosen(X, one))
    given.num_iters = 1  # of the object that was seen first
    assert_same(observed(X, given), chosen(X, given))


def test_a_property_that_the_frame_sets_is_read_as_it_is_set():
    def program(x, given):
        before = given.num_iters
        given.num_iters = before + 1
        return x + given.num_iters, before

    observed, given, other = Observed(program), settings(4), settings(4)
    for _ in range(3):
        assert_same(observed(X, given), program(X, other))
        assert given.num_iters == other.num_iters


def test_a_property_that_gives_an_object_is_left_to_python():
    def program(x, given):
        return x + 1, given.data["a"]

    given = torch.monitor.Event("name", datetime.datetime(2020, 1, 1), {"a": 2})
    assert_same(Observed(program)(X, given), program(X, given))
