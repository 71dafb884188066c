"""``.tree/turret`` shows the package as it is imported to editors and checkers, which an editable install does not."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_links_are_all_rooms_and_modules_of_the_package():
    names = {path.name for path in (ROOT / "core").iterdir() if path.name != "__pycache__"} | {"plugins", "contrib"}
    links = {path.name: path.resolve() for path in (ROOT / ".tree" / "turret").iterdir()}
    assert links.keys() == names
    for name, target in links.items():
        assert target == (ROOT / name if name in ("plugins", "contrib") else ROOT / "core" / name)
