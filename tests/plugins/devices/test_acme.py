"""A device that torch and Turret do not know is a plugin: kernels, views, training, autocast, graph capture.

It is torch's PrivateUse1, which a process has for good, so all checks run in one process of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = [
    line[4:].partition("(")[0]
    for line in (HERE / "acme_checks.py").read_text().splitlines()
    if "(world: World) ->" in line
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of each check: nothing, or a traceback."""
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    found = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": found, "TURRET_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, str(HERE / "acme_checks.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_acme(name: str, results: dict[str, str]) -> None:
    assert not results[name], results[name]
