"""The fuzz driver: records what it did, goes on where it stopped, reports failures as source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.fuzz.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_second_run_goes_on_where_the_first_one_stopped(tmp_path: Path):
    out = tmp_path / "fuzz.jsonl"
    first = run("--compiler", "eager", "--programs", "6", "--workers", "1", "--out", str(out))
    assert first.returncode == 0, first.stderr
    second = run("--compiler", "eager", "--programs", "9", "--batch", "1", "--workers", "1", "--out", str(out))
    assert second.returncode == 0, second.stderr
    assert "9 programs of seeds 0 to 8, 0 failures" in second.stdout
    assert "this run 3 programs" in second.stdout
    entries = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert sorted(entry["seeds"] for entry in entries) == [[seed, seed + 1] for seed in range(9)]


def test_a_record_of_other_arguments_is_refused(tmp_path: Path):
    out = tmp_path / "fuzz.jsonl"
    run("--compiler", "eager", "--programs", "1", "--workers", "1", "--out", str(out))
    other = run("--compiler", "eager", "--programs", "1", "--seed", "5", "--workers", "1", "--out", str(out))
    assert other.returncode != 0
    assert "another run" in other.stderr
