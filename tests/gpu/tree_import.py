"""Makes ``turret`` importable from a checkout that is not installed: import this module first.

``turret`` is the folder ``core``, ``turret.plugins`` is ``plugins`` and ``turret.contrib`` is ``contrib``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = {"turret": "core", "turret.plugins": "plugins", "turret.contrib": "contrib"}


class _TreeFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The package of that name in the tree; its modules are then found in the ordinary way."""
        if fullname not in _FOLDERS:
            return None
        folder = ROOT / _FOLDERS[fullname]
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


sys.meta_path.insert(0, _TreeFinder())
