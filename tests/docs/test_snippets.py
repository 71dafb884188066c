"""The Python snippets of the pages run as they stand, from top to bottom of each page."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from opencl_machine import require_opencl

from turret.hooks import hookspecs

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/plugins.md",
    "docs/debugging.md",
    "docs/stages.md",
    "docs/add-an-op.md",
    "docs/partition.md",
    "docs/opencl.md",
    "docs/testing.md",
    "docs/graph-compilers.md",
    "docs/cudagraphs.md",
)
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([\w./]+\.md)")


def snippets(page: str) -> list[tuple[int, str]]:
    """Line number and text of every Python snippet."""
    text = (ROOT / page).read_text()
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in SNIPPET.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run(page, monkeypatch, tmp_path):
    if page == "docs/opencl.md":
        require_opencl()
    monkeypatch.setenv("TURRET_ON_ERROR", "raise")
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "snippets"}
    found = snippets(page)
    assert found
    for line, text in found:
        if 'backend="turret"' in text and "turret" not in entry_points(group="torch_dynamo_backends").names:
            continue  # Turret runs from its folder and is not installed: torch cannot know the name.
        # Line numbers in a traceback are those of the page.
        exec(compile("\n" * line + text, str(ROOT / page), "exec"), namespace)


@pytest.mark.parametrize("hook", [name for name in vars(hookspecs) if name.startswith("turret_")])
def test_every_hook_has_a_snippet_that_runs_and_implements_it(hook):
    assert any(re.search(rf"\bdef {hook}\(", text) for page in PAGES for _, text in snippets(page))


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_and_named_files_are_there(page):
    text = (ROOT / page).read_text()
    links = [(ROOT / page).parent / target for target in LINK.findall(text)]
    named = [ROOT / name for name in re.findall(r"`((?:core|plugins|contrib|tests|examples|docs)/[\w/.]+)`", text)]
    missing = [str(path) for path in (*links, *named) if not path.exists()]
    assert not missing
