"""Lay the sources out as the package that gets installed: ``turret``, with ``plugins`` and ``contrib`` inside, and what
names its entry points.  With that folder on PYTHONPATH the tests run in an environment that has Turret's dependencies.

    python -m tests.package_tree build/tree
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path


def lay_out(target: Path) -> None:
    """Copy the three source folders under ``target/turret``, replacing what was there."""
    root = Path(__file__).resolve().parents[1]
    package = target / "turret"
    shutil.rmtree(package, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "core", package, ignore=ignore)
    for name in ("plugins", "contrib"):
        shutil.copytree(root / name, package / name, ignore=ignore)
    _describe(target, tomllib.loads((root / "pyproject.toml").read_text())["project"])


def _describe(target: Path, project: dict) -> None:
    """Write the name, version and entry points as an installer would."""
    folder = target / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(head)
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (folder / "entry_points.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
