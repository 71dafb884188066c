"""Default devices: set in the program, and around it."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, check

X = torch.ones(4)
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


@pytest.fixture
def plain_default():
    yield
    torch.set_default_device(None)


def test_a_device_as_a_block_of_the_program():
    def program(x):
        with torch.device("meta"):
            made = torch.ones(4)
            with torch.device("cpu"):
                inner = torch.arange(4)
            given = torch.zeros(2, device="cpu")
        return made.device, inner + x, given, torch.ones(2)

    observed = check(program, X, breaks=0, graphs=1)
    assert observed(X)[0].type == "meta"


def test_a_break_inside_the_block():
    def program(x):
        with torch.device("meta"):
            turret.graph_break()
            made = torch.ones(4)
        return made.device, x + torch.ones(4)

    observed = Observed(program)
    assert observed(X)[0].type == "meta" and observed(X)[1].device.type == "cpu"


def test_a_default_device_around_the_program_is_guarded(plain_default):
    observed = Observed(lambda x: x + torch.ones(4), fullgraph=True)
    assert observed(X).device.type == "cpu"
    torch.set_default_device("meta")
    assert observed(X.to("meta")).device.type == "meta"
    torch.set_default_device("cpu")
    assert torch.equal(observed(X), X * 2)
    torch.set_default_device(None)
    assert torch.equal(observed(X), X * 2)
    assert len(observed.graphs) == 3


def test_a_default_device_is_no_obstacle_to_compiling(plain_default):
    torch.set_default_device("cpu")
    fast = turret.compile(lambda x: x + torch.arange(4), fullgraph=True, options=OPTIONS)
    torch.testing.assert_close(fast(X), X + torch.arange(4))
