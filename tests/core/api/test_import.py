"""What ``import turret`` costs: names load on first use, and torch's own compile stack not before a compile."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from types import ModuleType

import pytest

import turret
import turret.testing

PROBE = """
import json, sys
import torch
before = set(sys.modules)
import turret
{use}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


COMPILE_STACK = ("torch._dynamo", "torch._inductor", "torch._functorch")


def modules_after(use):
    done = subprocess.run([sys.executable, "-c", PROBE.format(use=use)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_naming_the_api_imports_neither_sympy_nor_the_stages():
    use = "turret.compile; turret.explain; turret.set_logs; turret.hookimpl; turret.TurretError; turret.list_options"
    found = modules_after(use)
    heavy = (
        "sympy",
        "turret.plugins",
        "turret.pipeline.driver",
        "turret.ir",
        "torch._dynamo",
        "torch._inductor",
        "torch._functorch",
    )
    light = {"turret.plugins", "turret.plugins.observers", "turret.plugins.observers.logs"}  # for ``turret.set_logs``
    assert [name for name in found if name.startswith(heavy) and name not in light] == []


def test_registering_all_plugins_imports_no_compile_stack_of_torch():
    found = modules_after("from turret.hooks import plugin_manager; plugin_manager.default_manager()")
    assert "turret.contrib.dynamo.bridge" in found
    assert [name for name in found if name.startswith(COMPILE_STACK)] == []


def test_every_public_name_is_there_and_an_unknown_one_is_an_attribute_error():
    assert set(turret.__all__) <= set(dir(turret))
    assert all(getattr(turret, name) is not None for name in turret.__all__)
    with pytest.raises(AttributeError, match="no attribute 'compiled'"):
        _ = turret.compiled


def typed_names(module: ModuleType) -> dict[str, str]:
    """What a package imports for type checkers alone: where each name comes from."""
    blocks = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    return {alias.asname: node.module for node in block.body for alias in node.names}


@pytest.mark.parametrize("package", [turret, turret.testing])
def test_type_checkers_see_the_names_that_load_on_first_use_from_where_these_come(package):
    typed = typed_names(package)
    assert sorted(typed) == package.__all__
    for name, home in typed.items():
        assert getattr(package, name) is getattr(__import__(home, fromlist=[name]), name), name
