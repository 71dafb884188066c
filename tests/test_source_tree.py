"""``.tree/turret`` shows the package as it is imported to editors and checkers, which an editable install does not."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_links_are_all_rooms_and_modules_of_the_package():
    names = {path.name for path in (ROOT / "core").iterdir() if path.name != "__pycache__"} | {"plugins", "contrib"}
    links = {path.name: path.resolve() for path in (ROOT / ".tree" / "turret").iterdir()}
    assert links.keys() == names
    for name, target in links.items():
        assert target == (ROOT / name if name in ("plugins", "contrib") else ROOT / "core" / name)


def test_the_mark_of_a_typed_package_ships():
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert (ROOT / packaging["package-dir"]["turret"] / "py.typed").is_file()
    assert "py.typed" in packaging["package-data"]["turret"]
