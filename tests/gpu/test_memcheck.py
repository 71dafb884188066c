"""What runs under memcheck: every word names a check, which a run on a GPU would find out too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import memcheck
from tests.gpu.cases import CASES
from tests.gpu.check import is_chosen
from tests.gpu.graph_checks import GRAPH_CHECKS
from tests.gpu.special import SPECIAL


@pytest.mark.parametrize("word", [*memcheck.KERNELS, *memcheck.RECORDINGS])
def test_every_word_names_a_check(word: str) -> None:
    kernels = [case.name for case in CASES] + [run.__name__ for run in SPECIAL]
    recordings = [run.__name__ for run in GRAPH_CHECKS]
    own, other = (kernels, recordings) if word in memcheck.KERNELS else (recordings, kernels)
    assert any(is_chosen(name, word) for name in own) and not any(is_chosen(name, word) for name in other)


def test_the_checks_run_under_the_sanitizer_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    first, *rest = memcheck.command("softmax,row sum", 30)
    assert first == str(program) and rest[-5:] == ["--skip-timing", "--only", "softmax,row sum", "--budget", "30"]
