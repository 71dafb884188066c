"""What runs under memcheck: all checks, which a run on a GPU would find out too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import memcheck
from tests.gpu.cases import CASES
from tests.gpu.check import is_chosen
from tests.gpu.graph_checks import GRAPH_CHECKS
from tests.gpu.special import SPECIAL


def test_every_check_runs_once_with_the_allocator_that_it_needs() -> None:
    kernels, recordings = memcheck.kernels(), memcheck.recordings()
    every = [case.name for case in CASES] + [run.__name__ for run in (*SPECIAL, *GRAPH_CHECKS)]
    assert sorted(kernels + recordings) == sorted(every)
    for part in (*memcheck.dealt(kernels, 5), *memcheck.dealt(recordings, 2)):
        words = ",".join(f"={name}" for name in part)
        assert [name for name in every if is_chosen(name, words)] == [name for name in every if name in part]


def test_the_checks_run_under_the_sanitizer_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    first, *rest = memcheck.command("softmax,row sum", 30)
    assert first == str(program) and rest[-5:] == ["--skip-timing", "--only", "softmax,row sum", "--budget", "30"]
