"""Every example runs as a program of its own and prints what its docstring says."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import turret

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "demo.py")


def run(name: str) -> str:
    """What the example prints; fails with its errors where it does not end well."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TURRET_ON_ERROR": "raise"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised(name: str) -> list[str]:
    """The lines of the block after ``Prints::`` in an example's docstring."""
    lines = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())).splitlines()
    start = next(number for number, line in enumerate(lines) if line.endswith("Prints::"))
    block = []
    for line in lines[start + 2 :]:
        if not line.startswith("    "):
            break
        block.append(line[4:])
    return block


def is_shown(line: str, printed: str) -> bool:
    """Whether a promised line was printed; one that ends in ``...`` promises its beginning."""
    return printed.startswith(line.removesuffix("...")) if line.endswith("...") else printed == line


@pytest.mark.parametrize("name", SHORT)
def test_an_example_prints_what_its_docstring_says(name):
    expected, printed = promised(name), run(name).splitlines()
    assert expected
    missing = [line for line in expected if not any(is_shown(line, shown) for shown in printed)]
    assert not missing, f"printed instead: {printed}"


@pytest.mark.slow
def test_the_models_of_the_demo_agree_with_eager():
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    for build in (demo["bert"], demo["gpt2"]):
        model, tokens = build(1)
        for kind, step, mode in (("inference", demo["forward"], False), ("training", demo["train"], True)):
            model.train(mode)
            expected = step(model, tokens)
            given = step(turret.compile(model, options={"on_error": "raise"}), tokens)
            assert demo["error"](expected, given) <= demo["LARGEST_ERROR"][kind]
