"""Entry points of the native parts refuse what they do not take: wrong types, counts, ranges and dead references."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from turret.frames import frame_hook, guard_tree

SCRIPT = Path(__file__).with_name("fuzz_entry_points.py")


@pytest.mark.parametrize("seed", range(2))
def test_no_arguments_crash_them(seed):
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT), str(seed), "3000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout and "taken" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (3, (), None, None, None, None),
        (len, [], None, None, None, None),
        (len, (), 3, None, None, None),
        (len, (), None, 3, None, None),
        (),
    ],
)
def test_a_call_takes_a_callable_and_what_it_is_called_with(arguments):
    with pytest.raises(TypeError, match="call takes"):
        frame_hook.load().call(*arguments)


@pytest.mark.parametrize(
    "step", [(13, 0, None, 0), (2, 0, "x", 0), (0, -1, None, 5), (1, 3, None, 0), (11, -1, 3, 0), 3]
)
def test_a_step_refers_to_what_is_there(step):
    with pytest.raises(TypeError, match="no step of a tree"):
        guard_tree.load().tree([step], [], (), len, 1, True)


@pytest.mark.parametrize(
    "check",
    [(0, (), int, (), 0), (0, (1,), int, (), 0), (4, (0,), None, (), 0), (6, (0,), 3, (), 0), (9, (0,), None, (), 0),
     (13, (0,), (), (), 0), (16, (0,), (), (), 0), (17, (), None, (), 0), (99, (0,), None, (), 0),
     (11, (0,), None, (1, 2), 0), 3],
)  # fmt: skip
def test_a_check_has_what_its_kind_reads(check):
    with pytest.raises(TypeError, match="no check of a tree"):
        guard_tree.load().tree([(0, -1, None, 0)], [check], (), len, 1, True)
