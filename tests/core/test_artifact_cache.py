"""Entries of the cache are whole or not there, whatever happens to the folder meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from turret import artifact_cache
from turret.artifact_cache import ArtifactCache
from turret.errors import CacheError

KEY = "ab" + "0" * 62
FILES = {"one": b"1" * 1000, "two": b""}


@pytest.fixture
def cache(tmp_path):
    return ArtifactCache(tmp_path / "cache")


@pytest.fixture
def forget():
    """Forget which entries this process has verified, as a new process would."""
    return artifact_cache._verified.clear


def test_an_entry_comes_back_byte_for_byte(cache, forget):
    assert cache.get(KEY) is None
    path = cache.put(KEY, FILES)
    forget()
    assert cache.get(KEY) == path == cache.path(KEY)
    assert {name: (path / name).read_bytes() for name in FILES} == FILES


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_a_damaged_entry_is_removed_and_rebuilt(cache, forget, name, damage):
    path = cache.put(KEY, {**FILES, "two": b"22"})
    content = (path / name).read_bytes()
    forget()
    match damage:
        case "flip":
            (path / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        case "cut":
            (path / name).write_bytes(content[:-1])
        case "remove":
            (path / name).unlink()
        case "empty":
            (path / name).write_bytes(b"")
    assert cache.get(KEY) is None
    assert not path.exists()
    again, found = cache.get_or_build(KEY, lambda: FILES)
    assert not found and (again / "one").read_bytes() == FILES["one"]
    assert cache.get_or_build(KEY, lambda: pytest.fail("built twice")) == (again, True)


def test_a_damaged_entry_in_the_way_is_replaced_by_a_write(cache, forget):
    path = cache.put(KEY, FILES)
    forget()
    (path / "one").write_bytes(b"damaged")
    assert (cache.put(KEY, FILES) / "one").read_bytes() == FILES["one"]


def test_the_first_of_two_writers_wins_and_nothing_is_left_behind(cache):
    cache.put(KEY, {"one": b"first"})
    path = cache.put(KEY, {"one": b"second"})
    assert (path / "one").read_bytes() == b"first"
    assert [p.name for p in path.parent.iterdir()] == [KEY]


def test_a_write_that_fails_leaves_nothing_and_says_why(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact_cache.os, "rename", full)
    with pytest.raises(CacheError, match="No space left"):
        cache.put(KEY, FILES)
    assert cache.entries() == [] and list(cache.path(KEY).parent.iterdir()) == []


def test_threads_that_write_clear_and_read_never_see_half_an_entry(cache, forget):
    failures, stop = [], threading.Event()

    def watched(work):
        def run():
            try:
                work()
            except Exception as error:
                failures.append(error)

        return threading.Thread(target=run)

    def write():
        for number in range(40):
            with contextlib.suppress(CacheError):  # cleared as often as it was written
                cache.put(f"{number % 4:02d}" + "0" * 62, FILES)

    def read():
        while not stop.is_set():
            forget()
            for number in range(4):
                with contextlib.suppress(FileNotFoundError):  # cleared between the question and the reading
                    found = cache.get(f"{number:02d}" + "0" * 62)
                    assert found is None or (found / "one").read_bytes() == FILES["one"]
            assert cache.size() >= 0 and len(cache.entries()) <= 4

    def clear():
        while not stop.is_set():
            cache.clear()
            stop.wait(0.01)

    writers = [watched(write) for _ in range(3)]
    others = [watched(read), watched(clear)]
    for thread in (*writers, *others):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert failures == []


def test_processes_that_write_the_same_entry_all_succeed(tmp_path):
    program = (
        "import sys; from turret.artifact_cache import ArtifactCache\n"
        "cache = ArtifactCache(sys.argv[1])\n"
        "for n in range(30): cache.put(f'{n:064d}', {'file': str(n).encode() * 1000})\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "cache")]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    cache = ArtifactCache(tmp_path / "cache")
    assert len(cache.entries()) == 30
    assert all(cache.get(entry.name) for entry in cache.entries())


def test_size_and_clear(cache):
    assert (cache.size(), cache.clear()) == (0, 0)
    for number in range(3):
        cache.put(f"{number:02d}" + "0" * 62, FILES)
    assert len(cache.entries()) == 3
    assert cache.size() > 3000
    assert cache.clear() == 3
    assert (cache.size(), cache.entries()) == (0, [])


def test_the_folder_is_private_and_another_s_or_a_shared_one_is_refused(tmp_path, monkeypatch):
    folder = ArtifactCache(tmp_path / "mine").folder
    assert folder.stat().st_mode & 0o777 == 0o700
    os.chmod(folder, 0o777)
    with pytest.raises(CacheError, match="chmod go-w"):
        ArtifactCache(folder)
    os.chmod(folder, 0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(CacheError, match="belongs to another user"):
        ArtifactCache(folder)


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TURRET_CACHE_DIR", str(tmp_path / "named"))
    assert ArtifactCache().folder == tmp_path / "named"
    monkeypatch.delenv("TURRET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ArtifactCache().folder == tmp_path / "xdg" / "turret"
