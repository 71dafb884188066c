"""Keys of ``node.meta`` that cross rooms are declared, and what is declared is in use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from turret.hooks.node_meta import NodeMeta

ROOT = Path(__file__).parents[3]
DECLARED = set(NodeMeta.__annotations__)


def is_meta(node: ast.AST) -> bool:
    """Whether it is ``<something>.meta``, or a name for one."""
    return getattr(node, "attr", getattr(node, "id", None)) == "meta"


def key_expressions(tree: ast.Module) -> Iterator[ast.expr]:
    """What ``meta`` is indexed, asked or searched by."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=held, slice=key) if is_meta(held):
                yield key
            case ast.Call(func=ast.Attribute(value=held, attr="get" | "pop" | "setdefault"), args=[key, *_]) if is_meta(
                held
            ):
                yield key
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[held]) if is_meta(held):
                yield key


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of a module that stand for texts."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name))


@pytest.fixture(scope="module")
def rooms() -> dict[str, set[str]]:
    """The rooms that use each key."""
    paths = [path for folder in ("core", "plugins", "contrib") for path in (ROOT / folder).rglob("*.py")]
    trees = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in paths}
    names = dict(pair for tree in trees.values() for pair in constants(tree))
    used: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for key in key_expressions(tree):
            text = key.value if isinstance(key, ast.Constant) else names.get(getattr(key, "id", ""))
            if isinstance(text, str):
                used.setdefault(text, set()).add("/".join(path.parts[:2]))
    return used


def test_every_key_that_two_rooms_use_is_declared(rooms):
    assert {"val", "symbol_bindings", "original_aten"} <= rooms.keys()
    assert {key: used for key, used in rooms.items() if len(used) > 1 and key not in DECLARED} == {}


def test_every_key_that_is_declared_is_in_use(rooms):
    texts = "".join(path.read_text() for path in (ROOT / "plugins" / "joint").rglob("*.py"))
    assert {key for key in DECLARED if key not in rooms and f'"{key}"' not in texts} == set()
