"""Modes of the thread: autocast of every device, for traces that come later."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.frames.trace_modes import AUTOCAST_DEVICES, TraceModes, autocast_state

KNOWN = ("cpu", "cuda", "xpu", "hpu", "mps", "xla", "ipu", "mtia", "maia", "meta", "hip", "ve", "privateuseone")


def test_every_device_type_with_an_autocast_is_among_them():
    available = torch.amp.autocast_mode.is_autocast_available
    assert {kind for kind in KNOWN if available(kind)} == set(AUTOCAST_DEVICES)


@pytest.mark.parametrize("kind", AUTOCAST_DEVICES)
def test_modes_are_restored_and_put_back(kind):
    usual = autocast_state()
    torch.set_autocast_enabled(kind, True)
    try:
        modes = TraceModes.now()
    finally:
        torch.set_autocast_enabled(kind, False)
    assert autocast_state() == usual
    with torch.no_grad(), modes.restored():
        assert torch.is_autocast_enabled(kind) and torch.is_grad_enabled()
    assert autocast_state() == usual


@pytest.mark.parametrize("warn_only", (False, True))
def test_deterministic_algorithms_are_restored_and_put_back(warn_only):
    unasked = TraceModes.now()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with unasked.restored():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", AUTOCAST_DEVICES)
def test_a_program_that_asks_for_the_autocast_of_a_device_is_answered_as_in_eager(kind):
    def program(x):
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x + 1

    fast, x = turret.compile(program, options={"cache": False, "on_error": "raise"}), torch.ones(2)
    usual = torch.get_autocast_dtype(kind)
    for enabled, dtype in ((False, usual), (True, torch.float64), (True, torch.float32), (False, usual)):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
        try:
            assert fast(x).dtype == program(x).dtype
        finally:
            torch.set_autocast_enabled(kind, False)
            torch.set_autocast_dtype(kind, usual)


def test_what_a_program_leaves_of_autocast_is_left():
    fast = turret.compile(lambda x: (torch.set_autocast_enabled("hpu", True), x + 1)[1], options={"cache": False})
    try:
        fast(torch.ones(2))
        assert torch.is_autocast_enabled("hpu")
    finally:
        torch.set_autocast_enabled("hpu", False)
