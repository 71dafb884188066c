"""Products that are timed: once for a device and its driver, never where they cannot be, and failures cost nothing."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from turret.errors import CodegenError
from turret.hooks.devices import Properties
from turret.hooks.products import Target
from turret.plugins.codegen.triton import choices
from turret.storage.artifact_cache import ArtifactCache

TARGET = Target("cuda", 0, "sm_90", 132)


class FakeDevice:
    """A device that is there, of some driver."""

    def __init__(self, driver: str, available: bool = True) -> None:
        self.version, self.available = driver, available

    def is_available(self) -> bool:
        return self.available

    def properties(self, index: int) -> Properties:
        return Properties("a device")

    def driver(self, index: int) -> str:
        return self.version


class Context:
    """Keeps artifacts in a folder, and what is emitted in a list."""

    def __init__(self, folder: Path) -> None:
        self.kept, self.emitted = ArtifactCache(folder), []

    def store(self, stage: str) -> ArtifactCache:
        return self.kept

    def emit(self, kind: str, **facts: Any) -> None:
        self.emitted.append((kind, facts["message"]))


def candidate(**changes: Any) -> Any:
    return SimpleNamespace(form="tiles", is_static=True, schedule="a schedule", dtype=torch.bfloat16, **changes)


def ask(monkeypatch: pytest.MonkeyPatch, folder: Path, device: FakeDevice, found: Any, asked: Any) -> tuple:
    """The answer, what was emitted, and how often something was timed."""
    timed = []

    def microseconds(*arguments: Any) -> float:
        timed.append(arguments)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(choices, "device_for", lambda kind: device)
    monkeypatch.setattr(choices, "_microseconds", microseconds)
    context = Context(folder)
    return choices.timed_cost(context, asked, TARGET), context.emitted, len(timed)


def test_a_time_is_remembered_for_the_device_and_its_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ask(monkeypatch, tmp_path, FakeDevice("1"), 7.5, candidate()) == (7.5, [], 1)
    assert ask(monkeypatch, tmp_path, FakeDevice("1"), 9.5, candidate()) == (7.5, [], 0)
    assert ask(monkeypatch, tmp_path, FakeDevice("2"), 9.5, candidate()) == (9.5, [], 1)


def test_a_time_of_another_version_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ask(monkeypatch, tmp_path, FakeDevice("1"), 7.5, candidate())[2] == 1
    monkeypatch.setattr(choices, "source_fingerprint", lambda: "another")
    assert ask(monkeypatch, tmp_path, FakeDevice("1"), 5.0, candidate()) == (5.0, [], 1)


@pytest.mark.parametrize("failure", [CodegenError("no such tile"), RuntimeError("out of memory")], ids=str)
def test_what_cannot_run_is_out_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: Exception
) -> None:
    cost, emitted, _ = ask(monkeypatch, tmp_path, FakeDevice("1"), failure, candidate())
    assert cost == math.inf
    assert emitted == [("perf_hint", f"a product was not timed as tiles: {failure}")]
    assert ask(monkeypatch, tmp_path, FakeDevice("1"), 3.0, candidate())[0] == 3.0


def test_nothing_is_timed_without_a_device_or_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ask(monkeypatch, tmp_path, FakeDevice("1", available=False), 1.0, candidate()) == (None, [], 0)
    symbolic = candidate()
    symbolic.is_static = False
    assert ask(monkeypatch, tmp_path, FakeDevice("1"), 1.0, symbolic) == (None, [], 0)
