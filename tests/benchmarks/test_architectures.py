"""The table of architectures: what a capture reports, what becomes of one that dies, what the report says."""

from __future__ import annotations

import os
import signal

import pytest

from tests.benchmarks import architectures

pytest.importorskip("transformers")


def test_a_capture_reports_graphs_equality_and_time():
    answer = architectures.measure("vit", "turret", training=False)
    assert (answer["graphs"], answer["recompiles"], answer["resized"]) == (1, 0, 1)
    assert answer["equal"] == "yes" and answer["breaks"] == [] and answer["seconds"] > 0


def test_a_process_that_fails_or_dies_costs_its_own_row_alone():
    def fail() -> dict:
        raise ValueError("no such thing")

    def die() -> dict:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    assert architectures.in_child(lambda: {"graphs": 1}) == {"graphs": 1}
    assert architectures.in_child(fail) == {"error": "ValueError: no such thing"}
    assert architectures.in_child(die) == {"error": "ended with status 9"}


def test_the_report_names_what_the_other_system_alone_captures_whole():
    whole = {"graphs": 1, "breaks": [], "seconds": 1.0, "recompiles": 0, "resized": 1, "equal": "yes"}
    broken = whole | {"graphs": 2, "breaks": ["why\nFile x", "why\nFile y"]}
    rows = [
        {"name": "a", "kind": "k", "turret": whole | {"seconds": 0.5}, "dynamo": whole},
        {"name": "b", "kind": "k", "turret": broken, "dynamo": whole},
        {"name": "c", "kind": "k", "turret": whole | {"equal": "differs"}, "dynamo": {"error": "why not"}},
    ]
    text = architectures.report(rows)
    assert "dynamo alone: b" in text and "b, turret: 2 x why" in text and "geometric mean of 1: 0.50" in text
    assert "c, turret: not equal: differs" in text and "c, dynamo: why not" in text
