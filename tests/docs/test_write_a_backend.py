"""docs/write-a-backend.md is followed word for word: its files are made, its commands run, their output compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.torch_versions import is_pinned_torch
from turret.storage import prebuilt

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/write-a-backend.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FAILS = ("failed", "Mismatch")
"""What a command shows that is to end with another status than 0."""


@attrs.frozen
class Command:
    """A line of a console, and the lines that are shown below it."""

    line: str
    shown: tuple[str, ...]


def files() -> dict[str, str]:
    """Texts of the page's files by name."""
    return {name: text for _, name, text in BLOCK.findall(PAGE.read_text()) if name}


def commands() -> list[Command]:
    """The page's commands in order."""
    found = []
    for language, _, text in BLOCK.findall(PAGE.read_text()):
        if language == "console":
            first, *more = text.removeprefix("$ ").split("\n$ ")
            for part in (first, *more):
                line, *shown = part.rstrip().splitlines()
                found.append(Command(line, tuple(s.rstrip() for s in shown if s.strip())))
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A virtual environment that sees what this one has installed and built, and takes what the page installs."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    if prebuilt.folder().exists():
        shutil.copytree(prebuilt.folder(), folder / prebuilt.folder().relative_to(sys.prefix))
    (packages,) = folder.glob("lib/python*/site-packages")
    seen = [path for path in sys.path if path.endswith("site-packages")]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in seen)
    (packages / "seen.pth").write_text(lines)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    cache = {"TURRET_CACHE_DIR": str(folder / "cache"), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {**os.environ, **cache, "PATH": path}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="the page's commands are bash's")
def test_the_page_is_followed_from_an_empty_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    for name, text in files().items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for command in commands():
        told = f"$ {command.line}\n"
        ran = ["bash", "-c", command.line]
        done = subprocess.run(ran, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
        output = done.stdout + done.stderr
        fails = any(word in line for word in FAILS for line in command.shown)
        assert (done.returncode != 0) == fails, told + output
        if is_pinned_torch():
            assert_shown(command, output)


def assert_shown(command: Command, output: str) -> None:
    """Each line that the page shows is one of the output, or the beginning of one, in order."""
    lines = iter(output.splitlines())
    for shown in command.shown:
        found = any(line.startswith(shown) for line in lines)
        assert found, f"$ {command.line}\nnot shown in its place: {shown!r} in\n{output}"


def test_the_page_has_files_and_commands() -> None:
    assert {"pyproject.toml", "numpy_backend/__init__.py"} <= set(files())
    assert sum("turret.testing.pytest_plugin" in command.line for command in commands()) >= 3


def test_output_that_is_not_the_page_s_is_seen() -> None:
    command = Command("kit", ("cases 35", "all 61"))
    assert_shown(command, "cases 35 6\nmore\nall 61 0\n")
    for other in ("cases 34 7\nall 61\n", "all 61\ncases 35\n", ""):
        with pytest.raises(AssertionError, match="not shown in its place"):
            assert_shown(command, other)
