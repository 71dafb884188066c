"""Processes over one cache folder: killed, cold all at once, without a home, under any hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys
from pathlib import Path
from tests.core.storage import cache_lab
from turret.storage.artifact_cache import default_folder
watch = cache_lab.Watch()
cache_lab.results(watch, **json.loads(sys.argv[1]))
print(json.dumps([watch.stages, watch.failures]))
"""


def run(environment: dict[str, str], **options: object) -> tuple[list[str], list[str], str]:
    """Stages, failures of the cache, and warnings of a process of its own."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(options)]
    merged = {k: v for k, v in {**os.environ, "OMP_NUM_THREADS": "1", **environment}.items() if v}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=merged)
    assert done.returncode == 0, done.stderr[-3000:]
    return *json.loads(done.stdout.splitlines()[-1]), done.stderr


def script(*arguments: str) -> str:
    """What the long run of kills prints; it must find nothing wrong."""
    command = [sys.executable, "-m", "tests.fuzz.cache_processes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_processes_that_are_killed_leave_nothing_that_is_wrong():
    assert "right" in script("--kills", "3", "--seed", "1")


@pytest.mark.slow
def test_cold_processes_at_once_are_all_right():
    assert "right" in script("--at-once", "3")


@pytest.mark.slow
def test_sources_and_keys_are_the_same_under_any_hash_seed(tmp_path):
    found = []
    for seed in ("0", "12345"):
        folder = tmp_path / seed
        run({"PYTHONHASHSEED": seed}, cache_dir=str(folder))
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(("manifest", ".")))
        found.append({str(p.relative_to(folder)): p.read_bytes() for p in files})
    assert any(name.endswith("kernels.cpp") for name in found[0])
    assert [set(f) for f in found[1:]] == [set(found[0])]
    assert [[n for n in f if f[n] != found[0][n]] for f in found[1:]] == [[]]
    stages, failures, _ = run({"PYTHONHASHSEED": "7"}, cache_dir=str(tmp_path / "0"))
    assert set(stages) == {"runtime"} and not failures


@pytest.mark.slow
def test_without_a_home_to_write_to_all_of_it_runs_with_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    nowhere = str(tmp_path / "file" / "home")
    stages, _, warned = run({"HOME": nowhere, "XDG_CACHE_HOME": "", "TURRET_CACHE_DIR": ""})
    assert "lower" in stages and "keeps no compiled artifacts" in warned
