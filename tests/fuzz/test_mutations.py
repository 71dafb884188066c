"""No change between two calls leaves a compiled function stale; and the check of that finds code that is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import mutations


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_no_change_between_calls_leaves_a_compiled_function_stale(seed):
    result = mutations.check(seed)
    assert result.failure is None, result.failure


def test_a_compiler_that_never_looks_again_is_found_out(monkeypatch, tmp_path: Path):
    def once(program):
        known: list[torch.Tensor] = []

        def call(*args):
            if not known:
                known.append(program(*args))
            return known[0]

        return call

    monkeypatch.setattr(mutations, "compiled", once)
    monkeypatch.setattr("sys.argv", ["mutations.py", "--programs", "8", "--out", str(tmp_path / "out.jsonl")])
    with pytest.raises(SystemExit):
        mutations.main()
    *failures, totals = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert totals["programs"] == 8 and totals["stale"] == len(failures) > 0
    assert mutations.check(failures[0]["seed"]).failure is not None
