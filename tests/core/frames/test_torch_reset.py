"""Resetting torch's compiler forgets what Turret captured, whether or not that compiler was loaded before."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import turret

FIRST = """
import sys
import torch, turret
def function(x):
    return x + 1
compiled = turret.compile(function, options={"cache_dir": sys.argv[1]})
units = lambda: len(compiled.turret_settings.root.units)
for _ in range(2):
    compiled(torch.ones(3))
    print(units(), "torch._dynamo" in sys.modules)
    torch.compiler.reset()
    print(units(), "torch._dynamo" in sys.modules)
"""


def test_the_first_reset_of_a_process_is_heard(tmp_path):
    """In the second process nothing is traced, so that torch's compiler is loaded by the reset itself."""
    program = tmp_path / "program.py"
    program.write_text(FIRST)
    folder = tmp_path / "cache"
    for _ in range(2):
        done = subprocess.run([sys.executable, str(program), str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False", "0", "True", "1", "True", "0", "True"]


@pytest.mark.parametrize("home", ["turret", "torch.compiler", "torch._dynamo"])
def test_each_reset_is_heard(home):
    compiled = turret.compile(lambda x: x + 1, options={"cache": False})
    for _ in range(2):
        compiled(torch.ones(3))
        assert len(compiled.turret_settings.root.units) == 1
        importlib.import_module(home).reset()
        assert compiled.turret_settings.root.units == []
