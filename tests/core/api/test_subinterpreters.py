"""In a subinterpreter, where torch crashes, Turret says that it cannot work there, and the process goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from turret.frames import frame_hook, guard_tree
from turret.storage import prebuilt

RUN = """
import sys
{before}
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
made = interpreters.create()
try:
    failure = interpreters.run_string(made, {code!r})
    print("seen:", failure and failure.formatted)
except Exception as error:
    print("seen:", error)
interpreters.destroy(made)
{after}
print("ended")
"""
COMPILED = "import torch, turret; f = turret.compile(lambda x: x * 2 + 1); assert f(torch.ones(2)).tolist() == [3, 3]"


def output_of(code: str, before: str = "", after: str = "") -> str:
    pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    script = RUN.format(code=code, before=before, after=after)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "ended" in done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "code",
    ["import turret", "from turret import compile", "import turret.api.compile", "from turret.native import parts",
     "from turret.plugins import capture", "import turret.api.cli"],
)  # fmt: skip
def test_an_import_is_refused_with_the_reason(code):
    assert "cannot be imported in a subinterpreter: torch supports the main interpreter" in output_of(code)


def test_code_compiled_in_the_main_interpreter_goes_on_working_there():
    again = "assert f(torch.ones(3)).tolist() == [3, 3, 3]; turret.reset(); assert f(torch.zeros(2)).tolist() == [1, 1]"
    assert "cannot be imported in a subinterpreter" in output_of("import turret", COMPILED, again)


@pytest.mark.parametrize("extension", [frame_hook.EXTENSION, guard_tree.extension()], ids=lambda e: e.name)
def test_a_native_part_refuses_to_load(extension, tmp_path):
    library = prebuilt.find(extension.key(), extension.library)
    if library is None:
        library = tmp_path / extension.library
        library.write_bytes(extension.content())
    # The main interpreter has torch's libraries loaded, which the guard tree is linked with.
    load = f"""
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader({extension.name!r}, {str(library)!r})
importlib.util.module_from_spec(importlib.util.spec_from_file_location({extension.name!r}, loader=loader))
"""
    seen = output_of(load, "import torch")
    assert "main interpreter of a process alone" in seen or "does not support loading in subinterpreters" in seen
