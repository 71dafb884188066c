"""Default devices: set in the program, and around it."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import turret
from tests.plugins.capture.capture_lab import Observed, check
from turret.frames.trace_modes import has_modes, modes_in_use
from turret.torch_compat.function_overrides import pop_off_function_modes, push_onto_function_modes

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


class _Passing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


_STEPS = ("set meta", "set cpu", "set none", "make", "pop", "push", "break", "block")


def _follow_steps(x, steps, seen):
    for step in steps:
        if step == "make":
            seen.append(torch.ones(2).device.type)
        elif step == "pop":
            pop_off_function_modes()
        elif step == "push":
            push_onto_function_modes(_Passing())
        elif step == "break":
            turret.graph_break()
        elif step == "block":
            with torch.device("meta"):
                seen.append(torch.zeros(2).device.type)
        else:
            torch.set_default_device({"set meta": "meta", "set cpu": "cpu", "set none": None}[step])
    return x + 1


def _world(call, steps, outer, modes):
    """What a program sees, and the modes that it leaves: devices of default ones, class names of others."""
    seen: list[str] = []
    torch.set_default_device(outer)
    try:
        for _ in range(modes):
            push_onto_function_modes(_Passing())
        with contextlib.suppress(IndexError):
            call(torch.ones(2, device="cpu"), steps, seen)
        left = [str(getattr(mode, "device", type(mode).__name__)) for mode in modes_in_use()]
    finally:
        while has_modes():
            pop_off_function_modes()
        torch.set_default_device(None)
    return seen, left


@given(
    st.lists(st.sampled_from(_STEPS), max_size=6).map(tuple),
    st.sampled_from([None, "cpu", "meta"]),
    st.integers(0, 2),
)
@settings(max_examples=40, deadline=None)
def test_default_devices_that_a_program_sets_are_eagers(steps, outer, modes):
    # Python's own error, of a program that leaves modes that it has not entered, says nothing of compiled code.
    assume(all(steps[:n].count("pop") <= modes + steps[:n].count("push") for n in range(len(steps) + 1)))
    observed = Observed(_follow_steps)
    expected = _world(_follow_steps, steps, outer, modes)
    assert _world(observed, steps, outer, modes) == expected
    assert _world(observed, steps, outer, modes) == expected


@pytest.mark.parametrize("modes", [0, 1])
def test_a_program_that_sets_the_default_device_is_one_graph(plain_default, modes):
    observed = Observed(_follow_steps, fullgraph=True)
    steps = ("make", "set meta", "make", "set none", "make", "set meta")
    for _ in range(2):
        assert _world(observed, steps, None, modes) == (["cpu", "meta", "cpu"], ["meta"] + ["_Passing"] * modes)
    assert len(observed.graphs) == 1
