"""``.tree/turret`` shows the package as it is imported to editors and checkers, which an editable install does not;
and the modules that it shows import one another in one direction."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_links_are_all_rooms_and_modules_of_the_package():
    names = {path.name for path in (ROOT / "core").iterdir()} - {"__pycache__"} | {"plugins", "contrib"}
    links = {path.name: path.resolve() for path in (ROOT / ".tree" / "turret").iterdir() if path.name != "__pycache__"}
    assert links.keys() == names
    for name, target in links.items():
        assert target == (ROOT / name if name in ("plugins", "contrib") else ROOT / "core" / name)


def test_every_folder_of_modules_ships():
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = [(name, path) for name, folder in PACKAGES.items() for path in [*folder.rglob("__init__.py")]]
    found = {".".join((name, *path.parent.relative_to(PACKAGES[name]).parts)) for name, path in folders}
    assert sorted(packaging["packages"]) == sorted(found)


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


FOLDERS = ("core", "plugins", "contrib")
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


def test_a_context_is_not_anything():
    found = {
        f"{path.relative_to(ROOT)} {node.lineno}"
        for path in modules_of(*FOLDERS)
        for node in parsed(path)
        if isinstance(node, ast.arg) and node.arg == "context" and node.annotation is not None
        if ast.unparse(node.annotation) == "Any"
    }
    assert found == set()


TABLES = frozenset(("plugins/capture/handlers", "plugins/capture/values"))
"""Folders with a module for each kind of thing, however many there are."""


def test_a_folder_holds_about_twelve_modules():
    modules = Counter(str(path.parent.relative_to(ROOT)) for path in modules_of(*FOLDERS) if path.name != "__init__.py")
    assert {folder: count for folder, count in modules.items() if count > 14 and folder not in TABLES} == {}


def private_names_of_torch(path: Path) -> set[str]:
    """Torch's names with a part that begins with an underscore, as a module imports and reads them.

    Operators are no less public for such a name (``torch.ops.aten._to_copy``).
    """
    found = set()
    for node in parsed(path):
        if isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            found.add(dotted(node))
        elif isinstance(node, ast.Call) and dotted(node.func) == "getattr":
            found.update(f"{dotted(node.args[0])}.{name}" for name in texts_in(node.args[1]))
    named = {name for name in found if re.match(r"torch(\.\w+)*\._[a-z]", name, re.IGNORECASE)}
    return {name for name in named if not name.startswith("torch.ops.") and name not in DOCUMENTED}


DOCUMENTED = frozenset(("torch._check",))
"""Names that torch's manual has, for all their underscore."""


def dotted(node: ast.AST) -> str:
    """``a.b.c`` as it is written; what is no such name is empty."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def texts_in(node: ast.AST) -> list[str]:
    """The constant texts that a name is made of."""
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def modules_of(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_private_names_of_torch_are_named_in_torch_compat_alone():
    room = ROOT / "core" / "torch_compat"
    used = set().union(*map(private_names_of_torch, room.rglob("*.py")))
    assert {"torch._ops.OpOverload", "torch._C.DispatchKey"} <= used
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for path in modules_of("core", "plugins")
        if room not in path.parents
        for name in private_names_of_torch(path)
    }
    assert found == set()


def test_every_name_of_torch_compat_says_what_it_is():
    for path in (ROOT / "core" / "torch_compat").glob("*.py"):
        body = ast.parse(path.read_text()).body
        for node, behind in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or getattr(node, "value", None) is None:
                continue
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
            assert said or name == "__all__", f"{path.name}: {name} has no text behind it"


@pytest.mark.parametrize("text", [
    "import torch._ops", "from torch._C import _get_x", "torch._C.f()", "getattr(torch._C, '_f')",
    "getattr(torch, f'_set_{name}')", "from torch.utils import _pytree",
])  # fmt: skip
def test_a_private_name_is_noticed(tmp_path, text):
    path = tmp_path / "module.py"
    path.write_text(text)
    assert private_names_of_torch(path)


def test_torchs_own_compiler_is_imported_in_contrib_and_in_benchmarks_alone():
    banned = re.compile(r"torch\._(dynamo|inductor|functorch)\b")
    bridges = [ROOT / "tests" / name for name in ("benchmarks", "contrib")]
    compared = {"tests/plugins/capture/interpreter/test_torch_functions.py torch._dynamo"}
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for path in modules_of("core", "plugins", "tests", "examples")
        if not any(bridge in path.parents for bridge in bridges)
        for name in private_names_of_torch(path)
        if banned.match(name)
    }
    assert found == compared
