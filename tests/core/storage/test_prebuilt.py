"""Native parts built ahead of time are taken by every process of the environment, and only while they fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.core.storage.extension_lab import SOURCE
from turret.errors import CodegenError, TurretError
from turret.frames import frame_hook, guard_tree
from turret.graph.autograd import nodes
from turret.plan.launch import fresh_tensors
from turret.plan.launch.driver_library import GRAPHS, LAUNCHER
from turret.storage import prebuilt
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.extension import Extension

_LOADS_ALL = """
import sys

sys.prefix = sys.argv[1]
from turret.frames import frame_hook, guard_tree
from turret.storage.artifact_cache import ArtifactCache
from turret.plan.launch import fresh_tensors
from turret.graph.autograd import nodes
from turret.plan.launch.driver_library import GRAPHS, LAUNCHER
from turret.api.native_parts import parts

assert all(part.prebuilt() for part in parts()) and guard_tree.is_built()
loaded = frame_hook.load(), guard_tree.load(), fresh_tensors.load(), nodes.native()
LAUNCHER.build(ArtifactCache())
GRAPHS.build(ArtifactCache())
print(*(module.__file__ for module in loaded), len(ArtifactCache().entries()), sep="\\n")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of prebuilt parts of the test's own, and an empty cache."""
    monkeypatch.setenv("TURRET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(prebuilt, "folder", lambda: tmp_path / "prebuilt")
    return tmp_path / "prebuilt"


@pytest.fixture
def extension(tmp_path: Path, folder: Path) -> Extension:
    (tmp_path / "answer.cpp").write_text(SOURCE.replace("ANSWER", "42"))
    return Extension(tmp_path / "answer.cpp", "this test")


def test_a_process_that_finds_all_parts_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extensions = frame_hook.EXTENSION, guard_tree.extension(), fresh_tensors.extension(), nodes.extension()
    made = [(e.key(), e.library, e.content()) for e in extensions]
    libraries = [(made.key(), made.file, made.build(ArtifactCache(tmp_path / "native"))) for made in (LAUNCHER, GRAPHS)]
    made += libraries
    with monkeypatch.context() as patch:
        patch.setattr(sys, "prefix", str(tmp_path / "prefix"))
        places = [prebuilt.put(key, library, lambda content=content: content) for key, library, content in made]
    environment = {**os.environ, "CXX": "/nonexistent", "PATH": "/nonexistent", "TURRET_CACHE_DIR": f"{tmp_path}/empty"}
    done = subprocess.run(
        [sys.executable, "-c", _LOADS_ALL, str(tmp_path / "prefix")],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*map(str, places[:4]), "0"]
    assert all(tmp_path / "prefix" / "share" / "turret" / "native" in place.parents for place in places)


def test_it_is_taken_before_the_cache_is_asked(extension: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    prebuilt.put(extension.key(), extension.library, extension.build)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TURRET_CACHE_DIR", str(extension.source))  # a file: no cache could be made there
    assert extension.is_built() and extension.load().answer == 42


def test_a_changed_source_is_not_served_the_older_binary(extension: Extension) -> None:
    prebuilt.put(extension.key(), extension.library, extension.build)
    extension.source.write_text(SOURCE.replace("ANSWER", "43"))
    assert not extension.is_built() and extension.load().answer == 43
    assert prebuilt.find(extension.key(), extension.library) is None  # what is built at first use goes to the cache


def test_a_changed_launcher_is_not_served_the_older_binary(folder: Path, tmp_path: Path) -> None:
    older = prebuilt.put(LAUNCHER.key(), LAUNCHER.file, LAUNCHER.compile)
    cache = ArtifactCache()
    assert LAUNCHER.build(cache) == older.read_bytes() and not cache.entries()
    changed = tmp_path / "launcher.cpp"
    changed.write_bytes(LAUNCHER.source.read_bytes() + b"// one more line\n")
    other = attrs.evolve(LAUNCHER, source=changed)
    assert other.build(cache)[:4] == b"\x7fELF" and cache.contains(other.key())


def test_what_cannot_be_built_leaves_nothing(extension: Extension, folder: Path) -> None:
    extension.source.write_text("int main( {")
    with pytest.raises(CodegenError, match=r"failed on answer.cpp"):
        prebuilt.put(extension.key(), extension.library, extension.build)
    assert not list(folder.iterdir()) and not extension.is_built()


def test_a_folder_that_cannot_be_written_is_a_clear_error_before_anything_is_built(folder: Path) -> None:
    folder.write_text("")

    def never() -> bytes:
        raise AssertionError

    with pytest.raises(TurretError, match=r"cannot be written to .*prebuilt: .*run `turret build` as the user"):
        prebuilt.put("0" * 64, "library.so", never)


def test_a_library_is_readable_to_other_users(folder: Path) -> None:
    old = os.umask(0o022)
    try:
        place = prebuilt.put("0" * 64, "library.so", lambda: b"")
    finally:
        os.umask(old)
    assert place.stat().st_mode & 0o777 == 0o644 and place.parent.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in place.parent.iterdir()] == ["library.so"]


def test_only_other_keys_are_pruned(folder: Path) -> None:
    assert prebuilt.prune(()) == 0
    for key in ("0" * 64, "1" * 64):
        prebuilt.put(key, "library.so", lambda: b"")
    assert prebuilt.prune({"1" * 64}) == 1
    assert prebuilt.find("0" * 64, "library.so") is None and prebuilt.find("1" * 64, "library.so") is not None
