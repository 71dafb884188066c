"""Extension modules are built once for an interpreter, and errors name what is missing."""

from __future__ import annotations

import attrs
import pytest

from tests.core.storage.extension_lab import SOURCE
from turret.errors import CodegenError
from turret.frames import frame_hook
from turret.storage.extension import Extension


@pytest.fixture
def extension(tmp_path, monkeypatch) -> Extension:
    monkeypatch.setenv("TURRET_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "answer.cpp"
    source.write_text(SOURCE)
    return Extension(source, "this test", ("-DANSWER=42",), ("42",))


def test_it_is_built_once(extension, monkeypatch):
    assert not extension.is_built()
    assert extension.load().answer == 42
    assert extension.is_built()
    monkeypatch.setenv("PATH", "")
    assert extension.load().answer == 42


def test_what_it_depends_on_tells_binaries_apart(extension):
    extension.load()
    other = attrs.evolve(extension, flags=("-DANSWER=43",), facts=("43",))
    assert not other.is_built() and other.load().answer == 43


def test_a_missing_compiler_is_named(extension, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CodegenError, match=r"this test needs a C\+\+ compiler"):
        extension.load()


def test_errors_show_what_the_compiler_says(extension):
    extension.source.write_text("int main( {")
    with pytest.raises(CodegenError, match=r"failed on answer.cpp[^$]*main"):
        extension.load()


def test_the_frame_hook_is_one():
    assert frame_hook.load().__name__ == "_turret_frame_hook"
