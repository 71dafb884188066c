"""Capture's modules and rooms import one another in one direction, wherever and for whatever they do."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

from turret.plugins import capture

PACKAGE = "turret.plugins.capture"


def imports() -> dict[str, set[str]]:
    """For each module of capture, those that a statement in it imports: in functions and for annotations, too."""
    (folder,) = map(Path, capture.__path__)
    trees = {}
    for path in folder.rglob("*.py"):
        steps = path.relative_to(folder).with_suffix("").parts
        trees[".".join(s for s in steps if s != "__init__")] = ast.parse(path.read_text())
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        named = found.setdefault(module, set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
                base = (node.module or "").removeprefix(PACKAGE).lstrip(".")
                inner = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
                named.update(name if name in trees else base for name in inner)
        named.discard(module)
    return found


def test_no_circle_of_imports_runs_through_modules():
    found = imports()
    assert len(found) > 60 and len(found["handlers.library"]) > 15
    graphlib.TopologicalSorter(found).prepare()


def test_no_circle_of_imports_runs_through_rooms():
    rooms: dict[str, set[str]] = {}
    for module, named in imports().items():
        room = module.partition(".")[0]
        rooms.setdefault(room, set()).update(n.partition(".")[0] for n in named if n.partition(".")[0] != room)
    assert rooms["interpreter"] >= {"registry", "values"} and "handlers" not in rooms["interpreter"]
    graphlib.TopologicalSorter(rooms).prepare()


def test_a_circle_is_noticed():
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({**imports(), "registry": {"handlers.library"}}).prepare()
