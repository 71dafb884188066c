"""What another process compiled and stored is recorded and replayed as if it had been compiled here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.cudagraphs import stored_programs
from tests.plugins.devices.acme_world import environment


def outcome(cache: Path) -> dict[str, Any]:
    """What became of the programs in a process of their own."""
    command = [sys.executable, "-m", stored_programs.__name__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment(cache))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing_and_records_and_replays_the_same(tmp_path: Path) -> None:
    first, second = outcome(tmp_path), outcome(tmp_path)
    for name, told in first.items():
        assert told["compiled"] and not second[name]["compiled"], name
        assert sorted(map(str, told["functions"])) == sorted(map(str, second[name]["functions"])), name
        assert second[name]["sums"] == pytest.approx(told["sums"], rel=1e-4), name
        roles = {role for role, _, _, _, replays, *_ in second[name]["functions"] if replays}
        assert roles in ({"forward", "backward"}, {"inference"}), (name, roles)
