"""Fixtures of the tests of core."""

from __future__ import annotations

import pytest
import torch

import turret


@pytest.fixture
def fresh(monkeypatch):
    """Nothing captured before, the same random numbers, and a stage that fails raises."""
    monkeypatch.setenv("TURRET_ON_ERROR", "raise")
    monkeypatch.setattr("turret.plugins.capture.store.units.find", lambda *call: None)  # observers are to see graphs
    turret.reset()
    torch.manual_seed(0)
    yield
    turret.reset()
