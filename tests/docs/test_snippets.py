"""The Python snippets of the pages run as they stand, from top to bottom of each page, and print what is shown."""

from __future__ import annotations

import contextlib
import io
import re
from importlib.metadata import entry_points
from pathlib import Path

import attrs
import pytest
import torch

from tests.contrib.opencl.opencl_machine import require_opencl
from tests.torch_versions import is_pinned_torch
from turret.hooks import hookspecs

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./-]+\.(?:md|svg))")
MARKDOWN = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


@attrs.frozen
class Snippet:
    """A block of Python, the number of its line, and the output that the page shows below it; None where none is."""

    line: int
    text: str
    shown: str | None = None


def snippets(page: str) -> list[Snippet]:
    """The snippets of a page, in order."""
    text = (ROOT / page).read_text()
    found: list[Snippet] = []
    for block in BLOCK.finditer(text):
        if block.group(1) == "python":
            found.append(Snippet(text.count("\n", 0, block.start(2)), block.group(2)))
        else:
            found[-1] = attrs.evolve(found[-1], shown=block.group(2))
    return found


PAGES = [page for page in MARKDOWN if snippets(page)]


def is_shown(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed; ``...`` stands for anything, in a line or for several."""
    pattern = ".*?".join(map(re.escape, shown.strip().split("...")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run_and_print_what_it_shows(page, monkeypatch, tmp_path):
    if page == "docs/opencl.md":
        require_opencl()
    monkeypatch.setenv("TURRET_ON_ERROR", "raise")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict = {"__name__": "snippets"}
    for snippet in snippets(page):
        if 'backend="turret"' in snippet.text and "turret" not in entry_points(group="torch_dynamo_backends").names:
            continue  # Turret runs from its folder and is not installed: torch cannot know the name.
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Line numbers in a traceback are those of the page.
            exec(compile("\n" * snippet.line + snippet.text, str(ROOT / page), "exec"), namespace)
        if snippet.shown is not None and is_pinned_torch():
            assert is_shown(snippet.shown, printed.getvalue()), printed.getvalue()


def test_output_that_is_not_the_page_s_is_seen():
    assert is_shown("one ... 3\n...\nlast\n", "one 2 3\nmore\nlast\n")
    for printed in ("one 2 4\nmore\nlast\n", "one 2 3\nmore\n", ""):
        assert not is_shown("one ... 3\n...\nlast\n", printed)


@pytest.mark.parametrize("hook", [name for name in vars(hookspecs) if name.startswith("turret_")])
def test_every_hook_has_a_snippet_that_runs_and_implements_it(hook):
    assert any(re.search(rf"\bdef {hook}\(", snippet.text) for page in PAGES for snippet in snippets(page))


@pytest.mark.parametrize("page", MARKDOWN)
def test_links_and_named_files_are_there(page):
    text = (ROOT / page).read_text()
    links = [(ROOT / page).parent / target for target in LINK.findall(text)]
    named = [ROOT / name for name in re.findall(r"`((?:core|plugins|contrib|tests|examples|docs)/[\w/.-]+)`", text)]
    missing = [str(path) for path in (*links, *named) if not path.exists()]
    assert not missing
