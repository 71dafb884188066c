"""The run over crawled modules, on a checkout of a few made-up files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import crawled_modules

FILE = """
import torch, scipy.special
from _paritybench_helpers import _mock_config, _mock_layer, _paritybench_base, _fails_compile

class Doubles(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2

class Branches(torch.nn.Module):
    def forward(self, x):
        while x.sum() > 0:
            x = x - 1
        return x

class Fails(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("always")

TESTCASES = [(c, i, lambda: ([torch.rand([4, 4])], {}), True) for c, i in (
    (Doubles, lambda: ([4, 4], {})), (Branches, lambda: ([], {})), (Fails, lambda: ([], {})))]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "generated").mkdir()
    for number in range(7):
        text = FILE if number == 1 else "TESTCASES = []" if number != 5 else "TESTCASES = 1 / 0"
        (tmp_path / "generated" / f"test_{number}.py").write_text(text)
    (tmp_path / "generated" / "helpers.py").write_text("")
    return tmp_path


def test_every_tenth_file_is_held_back(checkout: Path):
    assert [p.stem for p in crawled_modules.files(checkout)] == [f"test_{n}" for n in (0, 1, 2, 3, 4, 6)]
    assert [p.stem for p in crawled_modules.files(checkout, held_back=True)] == ["test_5"]


def test_each_system_gets_its_outcome_and_the_table_counts_them(checkout: Path):
    record = checkout / "results.jsonl"
    command = [sys.executable, "-m", crawled_modules.__name__, str(checkout), "--record", str(record), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    doubles, branches, fails = sorted(map(json.loads, record.read_text().splitlines()), key=lambda row: row["case"])
    assert [doubles[s]["outcome"] for s in ("turret", "breaks", "dynamo")] == ["ok"] * 3
    assert [branches[s]["outcome"] for s in ("turret", "breaks", "dynamo")] == ["unsupported", "ok", "unsupported"]
    assert fails["eager"] == "fails"
    assert "a branch on a tensor's value" in done.stdout


def test_differences_of_types_values_strides_and_gradients_are_found():
    x = torch.ones(2, 3)
    crawled_modules.same([x, {"a": 1.0}], [x.clone(), {"a": 1.0}], "")
    for other in (x + 1, x.double(), x.t().contiguous().t(), x.clone().requires_grad_(), [x]):
        with pytest.raises(crawled_modules.Discrepancy):
            crawled_modules.same(other, x, "")
