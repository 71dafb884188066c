"""A device that torch and Turret do not know is a plugin: kernels, views, training, autocast, graph capture.

It is torch's PrivateUse1, which a process has for good, so all checks run in one process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.devices.acme_world import environment

NAMES = [
    line[4:].partition("(")[0]
    for line in Path(__file__).with_name("acme_checks.py").read_text().splitlines()
    if "(world: World) ->" in line
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is compiled, the device among it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def results(cache: Path) -> dict[str, str]:
    """What came of each check: nothing, or a traceback."""
    command = [sys.executable, "-m", "tests.plugins.devices.acme_checks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment(cache))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_acme(name: str, results: dict[str, str]) -> None:
    assert not results[name], results[name]


def test_acme_passes_the_conformance_kit_with_its_own_memory(cache: Path, tmp_path: Path) -> None:
    chosen = ["--turret-level=cases,kernels", "--turret-count=cases=12", "--turret-count=kernels=6"]
    device = ["--turret-plugin=tests.plugins.devices.acme_kit:plugin", "--turret-device=acme"]
    kit = ["-p", "turret.testing.pytest_plugin", *device, *chosen]
    command = [sys.executable, "-m", "pytest", "-q", "--turret-json=out.json", *kit]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, env=environment(cache))
    assert done.returncode == 0, done.stdout + done.stderr
    levels = json.loads((tmp_path / "out.json").read_text())["levels"]
    assert (levels["cases"]["right"], levels["kernels"]["right"]) == (12, 6), done.stdout
