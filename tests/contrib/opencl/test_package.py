"""The package stays what a small code generator from outside is: little code over public names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "contrib" / "opencl"
MOST_LINES = 400


def public_modules() -> set[str]:
    """The modules that the docs name as public."""
    text = (ROOT / "docs" / "plugins.md").read_text()
    section = re.search(r"^## What is public$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(turret(?:\.\w+)*)`", section.group(1)))


def imports(source: str) -> list[tuple[str, str]]:
    """Module and name of everything that a source imports of Turret."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.split(".")[0] == "turret":
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "turret"]
    return found


def test_it_imports_public_names_alone():
    public = public_modules()
    assert "turret.ir" in public
    for path in PACKAGE.glob("*.py"):
        for module, name in imports(path.read_text()):
            own = module.startswith("turret.contrib.opencl")
            assert own or (module in public and not name.startswith("_")), f"{path.name}: {module} {name}"


def test_it_has_at_most_400_lines():
    lines = {path.name: len(path.read_text().splitlines()) for path in PACKAGE.iterdir() if path.is_file()}
    assert sum(lines.values()) <= MOST_LINES, lines
