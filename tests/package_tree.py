"""Lay the sources out as the package that gets installed: ``turret``, with ``plugins`` and ``contrib`` inside.

    python tests/package_tree.py build/lint

Checkers that walk folders (imports, types) do not see through an editable install, whose packages lie apart.
"""

from __future__ import annotations

import shutil
import sys
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


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
