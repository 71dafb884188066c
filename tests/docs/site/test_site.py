"""The site is built without a warning: links and anchors lead somewhere, and the reference finds what it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import turret
from turret import testing

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "docs/site/mkdocs.yml"
REFERENCE = ROOT / "docs/api"


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    done = build(CONFIG, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'id="turret.compile"' in (tmp_path / "api/turret.html").read_text()


def test_every_public_name_is_in_the_reference():
    named = set(re.findall(r"^::: turret\.(\w+)$|`turret\.(\w+)`", (REFERENCE / "turret.md").read_text(), re.MULTILINE))
    assert {name for names in named for name in names if name} >= set(turret.__all__)


def test_every_name_of_the_testing_kit_is_in_the_reference():
    named = re.findall(r"^::: turret\.testing\.(\w+)$", (REFERENCE / "testing.md").read_text(), re.MULTILINE)
    assert sorted(named) == testing.__all__


def test_every_public_module_is_in_the_reference():
    text = (ROOT / "docs/plugins.md").read_text().split("## What is public\n")[1].split("\n## ")[0]
    modules = set(re.findall(r"`(turret\.[\w.]+)`", text)) - {"turret.testing"}
    written = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    assert modules
    assert modules <= set(re.findall(r"^::: ([\w.]+)$", written, re.MULTILINE))
