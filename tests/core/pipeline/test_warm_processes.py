"""A second process neither traces nor compiles: random numbers, plugins' operators, wrappers and compilers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = (
    "random numbers",
    "operators of a plugin",
    "a wrapper",
    "a compiler of graphs",
    "a compiler of clusters",
)


def processes(folder, *scripts_and_cases):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TURRET_CACHE_DIR": str(folder)}
    command = [sys.executable, *map(str, scripts_and_cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every case in a first process and in a second one."""
    script, folder = Path(__file__).parent / "warm_programs.py", tmp_path_factory.mktemp("cache")
    return processes(folder, script, *CASES), processes(folder, script, *CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_neither_traces_nor_compiles(runs, case):
    (values, stages, _, reasons, known), (again, no_stages, hits, _, known_again) = (run[case] for run in runs)
    assert "joint" in stages and reasons == []
    assert no_stages == [] and {"graph", "capture"} <= set(hits)
    assert again == values
    if case == "a wrapper":
        assert known["calls"] == known_again["calls"] == 2
    if case.startswith("a compiler"):
        assert known["loaded"] == 0 and known_again["loaded"] == {"graphs": 2, "clusters": 3}[case.split()[-1]]


def test_another_key_of_a_plugin_is_a_miss(tmp_path):
    script = (Path(__file__).parent / "warm_programs.py").read_text()
    for number, key in enumerate(("acme 1", "acme 2")):
        file = tmp_path / f"{number}" / "warm_programs.py"
        file.parent.mkdir()
        file.write_text(script.replace('"acme 1"', f'"{key}"'))
        found = processes(tmp_path / "cache", file, "operators of a plugin")
        assert "joint" in found["operators of a plugin"][1]
