"""``.tree/turret`` shows the package as it is imported to editors and checkers, which an editable install does not;
and the modules that it shows import one another in one direction."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import tomllib
from pathlib import Path

import pytest

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


@functools.cache
def parsed(path: Path) -> list[ast.AST]:
    """All nodes of a module."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(folders: dict[str, Path]) -> dict[str, set[str]]:
    """For each module, those that a statement in it imports: in functions and for annotations, too."""
    trees = {}
    for package, folder in folders.items():
        for path in folder.rglob("*.py"):
            steps = path.relative_to(folder).with_suffix("").parts
            trees[".".join((package, *steps)).removesuffix(".__init__")] = path
    found: dict[str, set[str]] = {}
    for module, path in trees.items():
        named = found.setdefault(module, set())
        for node in parsed(path):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports relative to itself"
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                named.update(name if name in trees else str(node.module) for name in inner)
            elif isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
        named &= trees.keys() - {module}
    return found


PACKAGES = {"turret": ROOT / "core", "turret.plugins": ROOT / "plugins", "turret.contrib": ROOT / "contrib"}


def test_no_circle_of_imports_runs_through_the_package_annotations_and_functions_counted():
    found = imports(PACKAGES)
    assert len(found) > 300 and len(found["turret.pipeline.driver"]) > 10
    graphlib.TopologicalSorter(found).prepare()


def test_a_circle_is_noticed(tmp_path):
    (tmp_path / "one.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.two import f\n")
    (tmp_path / "two.py").write_text("def f():\n    import p.one\n")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(imports({"p": tmp_path})).prepare()


def complexity(function: ast.AST) -> int:
    """One more than there are decisions in a function and those inside of it."""
    decisions = (
        ast.If,
        ast.For,
        ast.While,
        ast.ExceptHandler,
        ast.IfExp,
        ast.comprehension,
        ast.Assert,
        ast.match_case,
    )
    nodes = list(ast.walk(function))
    either = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + sum(isinstance(node, decisions) for node in nodes) + either


def test_no_function_makes_more_than_fourteen_decisions():
    found = {
        f"{path.relative_to(ROOT)} {node.name}"
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        for node in parsed(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and complexity(node) > 15
    }
    assert found == set()


def private_names_of_torch(path: Path) -> set[str]:
    """Torch's names with a part that begins with an underscore, as a module imports and reads them."""
    found = set()
    for node in parsed(path):
        if isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
    return {name for name in found if name.startswith("torch.") and re.search(r"\._[a-z]", name, re.IGNORECASE)}


def test_private_names_of_torch_that_have_a_name_of_ours_are_used_under_that_alone():
    room = ROOT / "core" / "torch_compat"
    ours = set().union(*map(private_names_of_torch, room.glob("*.py")))
    modules = {name for name in ours if any(other.startswith(f"{name}.") for other in ours)}
    assert {"torch._ops.OpOverload", "torch._C.DispatchKey"} <= ours - modules
    paths = [path for name in ("core", "plugins") for path in (ROOT / name).rglob("*.py") if room not in path.parents]
    found = {
        f"{path.relative_to(ROOT)} {name}" for path in paths for name in private_names_of_torch(path) & (ours - modules)
    }
    assert found == set()


def test_capture_names_no_private_module_or_class_of_torch():
    """``torch._check`` is in torch's manual, and operators (``torch.ops``) are named as they are."""
    paths = (ROOT / "plugins" / "capture").rglob("*.py")
    found = {f"{path.name} {name}" for path in paths for name in private_names_of_torch(path) - {"torch._check"}}
    assert {name for name in found if " torch.ops." not in name} == set()
