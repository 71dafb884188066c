"""Modules and names that the pages mention are there: a page is told of what moves."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
PAGES.remove("docs/CHANGELOG.md")  # tells of what is gone, too


def missing_modules(text: str, files: list[str]) -> list[str]:
    """The files in a page's text, as paths from the root or ends of such, that are none of ``files``."""
    named = set(re.findall(r"`([\w/.]+\.(?:py|cpp|h))`", text))
    return sorted(name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files))


def missing_names(text: str) -> list[str]:
    """The dotted names in a page's text, of Turret's, that nothing has."""
    return [name for name in sorted(set(re.findall(r"`(turret(?:\.\w+)+)", text))) if not _is_there(name.split("."))]


def _is_there(parts: list[str]) -> bool:
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.fixture(scope="module")
def files() -> list[str]:
    folders = ("core", "plugins", "contrib", "tests", "examples", "docs/site")
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.*"))
    return [str(path.relative_to(ROOT)) for path in found]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_is_there(page, files):
    text = (ROOT / page).read_text()
    assert missing_modules(text, files) == [] and missing_names(text) == []


def test_what_is_gone_is_noticed():
    text = "`plan/gone.py`, `plan/plan.py` and `an.py`; `turret.ir.gone`, `turret.ir.Expr` and `turret.gone.Expr()`"
    assert missing_modules(text, ["core/plan/plan.py", "core/plan.py"]) == ["an.py", "plan/gone.py"]
    assert missing_names(text) == ["turret.gone.Expr", "turret.ir.gone"]
