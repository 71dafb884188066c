"""Native code is loaded from the content that was verified, once for equal content, and never from another file."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from turret.errors import CacheError
from turret.storage import libraries
from turret.storage.artifact_cache import ArtifactCache, process_cache
from turret.storage.libraries import (
    Library,
    as_path,
    built_library,
    find_library,
    forget_library,
    keep_library,
    open_anew,
    open_library,
)

KEY = "cd" + "0" * 62
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def counting(folder: Path, start: int) -> bytes:
    """A library whose ``count`` returns ``start``, and one more in each call."""
    source = f'extern "C" int count() {{ static int n = {start}; return n++; }}'
    made = folder / f"{start}.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", made], input=source.encode(), check=True)
    return made.read_bytes()


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> bytes:
    return counting(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory) -> bytes:
    return counting(tmp_path_factory.mktemp("hundred"), 100)


@pytest.fixture(params=["memory", "folder"])
def place(request, monkeypatch):
    """Where libraries are loaded from: a file in memory, or a folder where there are none."""
    if request.param == "folder":
        monkeypatch.setattr(libraries, "_memory_file", lambda name: None)
    monkeypatch.setattr(libraries, "_opened", {})
    return request.param


def test_equal_content_is_loaded_once_and_other_content_beside_it(place, one, hundred):
    first, second, again = open_library(one), open_library(hundred), open_library(bytes(one))
    assert again is first
    assert (first.count(), second.count(), again.count()) == (1, 100, 2)
    assert open_anew(one).count() == 1 and open_library(one).count() == 3


def test_files_are_closed_and_their_numbers_lead_to_no_other_library(place, one, hundred):
    """The dynamic linker takes a path that it has seen for the library that it was."""
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(40):
        assert open_anew(one).count() == 1
        assert open_anew(hundred).count() == 100
    assert len(os.listdir("/proc/self/fd")) == files


def test_paths_are_never_the_same(one):
    seen = set()
    for number in range(300):
        with as_path(one, "library") as path:
            seen.add(path)
            assert number % 100 or ctypes.CDLL(path).count() == 1
    assert len(seen) == 300


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + b"0" * 100])
def test_what_is_no_library_is_an_error(place, content):
    with pytest.raises(OSError):
        open_library(content)


def test_a_library_is_the_store_s_own_whatever_lies_where_it_was_built(tmp_path, monkeypatch, one, hundred):
    """Built in one folder, which is copied and then changed: the copy's library is what runs."""
    built = ArtifactCache(tmp_path / "built")
    keep_library(built, KEY, {"library.so": one})
    shutil.copytree(built.folder, tmp_path / "copy")
    (built.path(KEY) / "library.so").write_bytes(hundred)
    process_cache.remove(KEY)
    copy = ArtifactCache(tmp_path / "copy")
    assert open_anew(find_library(Library(KEY, "library.so"), copy)["library.so"]).count() == 1
    with pytest.raises(CacheError, match="not in the cache"):
        find_library(Library(KEY, "library.so"), built)


def test_what_changes_after_it_was_verified_is_not_loaded(tmp_path, one, hundred):
    store = ArtifactCache(tmp_path)
    keep_library(store, KEY, {"library.so": one})
    process_cache.remove(KEY)
    found = find_library(Library(KEY, "library.so"), store)
    (store.path(KEY) / "library.so").write_bytes(hundred)
    assert open_anew(found["library.so"]).count() == 1


def test_a_library_is_found_in_this_process_when_the_folder_is_cleared(tmp_path, one):
    store = ArtifactCache(tmp_path)
    keep_library(store, KEY, {"library.so": one})
    store.clear()
    assert find_library(Library(KEY, "library.so"), store)["library.so"] == one
    forget_library(Library(KEY, "library.so"), store)
    with pytest.raises(CacheError):
        find_library(Library(KEY, "library.so"), store)


class Context:
    """What a code generator is handed, as far as libraries need it."""

    def __init__(self, folder) -> None:
        self.folder, self.events = folder, []

    def store(self, stage: str):
        return ArtifactCache(self.folder)

    def emit(self, kind: str, **fields) -> None:
        self.events.append(kind)


def test_a_library_is_built_once_for_equal_parts(tmp_path):
    tmp_path.chmod(0o700)
    context, built = Context(tmp_path), []

    def build():
        built.append(1)
        return {"program": b"code", "table": b"{}"}

    first = built_library(context, "program", ("source", "flags"), build)
    assert built_library(context, "program", ("source", "flags"), build) == first and len(built) == 1
    other = built_library(context, "program", ("sourcef", "lags"), build)
    assert other.key != first.key and len(built) == 2 and context.events == ["cache_miss", "cache_hit", "cache_miss"]
    assert find_library(first, context.store(""))["table"] == b"{}"
