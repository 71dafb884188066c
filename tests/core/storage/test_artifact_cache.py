"""Entries of the cache are whole or not there, whatever happens to the folder meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from turret.errors import CacheError
from turret.storage import artifact_cache, cache_limit, private_files
from turret.storage.artifact_cache import ArtifactCache, ProcessCache, open_store, process_cache

KEY, OTHER = "ab" + "0" * 62, "ab" + "1" * 62
FILES = {"one": b"1" * 1000, "two": b""}
ROLE = "role"


@pytest.fixture
def said():
    """What the cache reported."""
    return []


@pytest.fixture
def cache(tmp_path, said):
    return ArtifactCache(tmp_path / "cache", report=said.append)


def leftovers(cache):
    """What lies in the cache beside entries."""
    return [p for p in (cache.folder / artifact_cache.FORMAT / ".building").iterdir()]


def test_an_entry_comes_back_byte_for_byte(cache, said):
    assert cache.get(KEY, ROLE) is None and not cache.contains(KEY)
    assert cache.put(KEY, ROLE, FILES).files == FILES
    found = cache.get(KEY, ROLE)
    assert found.files == FILES and (found.key, found.role) == (KEY, ROLE) and cache.contains(KEY)
    assert {name: (cache.path(KEY) / name).read_bytes() for name in FILES} == FILES
    assert said == [] and leftovers(cache) == []


def test_a_file_that_an_entry_lacks_is_an_error_that_names_it(cache):
    with pytest.raises(CacheError, match=f"the role {KEY} has no file three"):
        cache.put(KEY, ROLE, FILES)["three"]


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty", "folder", "link", "pipe"])
def test_a_damaged_entry_is_reported_removed_and_rebuilt(cache, said, tmp_path, name, damage):
    cache.put(KEY, ROLE, {**FILES, "two": b"22"})
    file = cache.path(KEY) / name
    content = file.read_bytes()
    if damage not in ("flip", "cut", "empty"):
        file.unlink()
    match damage:
        case "flip":
            file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        case "cut":
            file.write_bytes(content[:-1])
        case "empty":
            file.write_bytes(b"")
        case "folder":
            file.mkdir()
        case "link":
            (tmp_path / "elsewhere").write_bytes(content)
            file.symlink_to(tmp_path / "elsewhere")
        case "pipe":
            os.mkfifo(file)
    assert cache.get(KEY, ROLE) is None and len(said) == 1 and str(cache.path(KEY)) in said[0]
    assert not cache.contains(KEY)
    again, found = cache.get_or_build(KEY, ROLE, lambda: FILES)
    assert not found and again["one"] == FILES["one"]
    again, found = cache.get_or_build(KEY, ROLE, lambda: pytest.fail("built twice"))
    assert found and again.files == FILES and len(said) == 1


@pytest.mark.parametrize("there", ["file", "link", "empty folder", "link to an entry"])
@pytest.mark.parametrize("level", ["entry", "shard"])
def test_something_else_in_the_place_of_an_entry_is_removed(cache, said, tmp_path, there, level):
    cache.put(KEY, ROLE, {"one": b"good"})
    place = cache.path(KEY) if level == "entry" else cache.path(KEY).parent
    moved = tmp_path / "moved"
    shutil.move(place, moved)
    match there:
        case "file":
            place.write_text("")
        case "link":
            place.symlink_to(tmp_path / "nowhere")
        case "empty folder":
            place.mkdir()
        case "link to an entry":
            place.symlink_to(moved)
    assert cache.get(KEY, ROLE) is None
    assert cache.put(KEY, ROLE, FILES).files == FILES
    assert cache.get(KEY, ROLE).files == FILES
    assert there == "empty folder" or said  # an empty shard is as good as none
    assert moved.exists()  # what a link led to is nobody's business


def test_entries_in_each_other_s_place_are_not_taken(cache, said):
    cache.put(KEY, ROLE, {"one": b"mine"})
    cache.put(OTHER, ROLE, {"one": b"theirs"})
    one, other, aside = cache.path(KEY), cache.path(OTHER), cache.folder / "aside"
    for source, target in ((one, aside), (other, one), (aside, other)):
        os.rename(source, target)
    assert cache.get(KEY, ROLE) is None and cache.get(OTHER, ROLE) is None
    assert len(said) == 2 and all("it says that it is" in message for message in said)


def test_an_entry_of_another_role_is_not_taken(cache, said):
    cache.put(KEY, "forward", FILES)
    assert cache.get(KEY, "backward") is None and "forward" in said[0]


def test_a_manifest_with_names_that_lead_out_of_the_entry_is_not_followed(cache, said):
    cache.put(KEY, ROLE, FILES)
    manifest = cache.path(KEY) / "manifest.json"
    for name in ("../x", "/etc/hostname", "..", ""):
        cache.put(KEY, ROLE, FILES)
        content = json.loads(manifest.read_text())
        content["files"] = {name: "0" * 64}
        manifest.write_text(json.dumps(content))
        assert cache.get(KEY, ROLE) is None and "is no name of a file" in said[-1]


@pytest.mark.parametrize("content", ["[]", "{}", "3", "[" * 100_000, '{"format": "v2", "key": 3}', "\x00", '"v2"'])
def test_nonsense_in_a_manifest_does_not_verify(cache, said, content):
    cache.put(KEY, ROLE, FILES)
    (cache.path(KEY) / "manifest.json").write_text(content)
    assert cache.get(KEY, ROLE) is None and len(said) == 1


def test_files_that_others_may_write_do_not_verify(cache, said):
    for target in (cache.path(KEY), cache.path(KEY) / "one", cache.path(KEY).parent):
        cache.put(KEY, ROLE, FILES)
        os.chmod(target, 0o777)
        assert cache.get(KEY, ROLE) is None and "others may write" in said[-1]
        assert not target.exists()


def test_files_of_another_user_do_not_verify(cache, said, monkeypatch):
    cache.put(KEY, ROLE, FILES)
    with monkeypatch.context() as patch:
        patch.setattr(private_files.os, "getuid", lambda: cache.folder.stat().st_uid + 1)
        assert cache.get(KEY, ROLE) is None
    assert "belongs to another user" in said[0]


def test_a_damaged_entry_in_the_way_is_replaced_by_a_write(cache):
    cache.put(KEY, ROLE, FILES)
    (cache.path(KEY) / "one").write_bytes(b"damaged")
    assert cache.put(KEY, ROLE, FILES)["one"] == FILES["one"]
    assert cache.get(KEY, ROLE).files == FILES


def test_the_first_of_two_writers_wins_and_nothing_is_left_behind(cache):
    cache.put(KEY, ROLE, {"one": b"first"})
    assert cache.put(KEY, ROLE, {"one": b"second"})["one"] == b"first"
    assert [p.name for p in cache.path(KEY).parent.iterdir()] == [KEY] and leftovers(cache) == []


@pytest.mark.parametrize("call", ["mkdir", "mkdtemp", "write_bytes", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_leaves_nothing_says_why_and_the_content_holds(cache, said, monkeypatch, call, number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    owner = {
        "mkdir": artifact_cache.Path,
        "mkdtemp": artifact_cache.tempfile,
        "write_bytes": artifact_cache.Path,
        "rename": artifact_cache.os,
    }[call]
    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(CacheError, match=os.strerror(number)):
        cache.put(KEY, ROLE, FILES)
    assert said == []
    entry, found = cache.get_or_build(KEY, ROLE, lambda: FILES)
    assert entry.files == FILES and not found and os.strerror(number) in said[0]
    monkeypatch.undo()
    assert cache.entries() == [] and not cache.contains(KEY)


def test_an_error_that_is_no_fault_of_the_entry_does_not_remove_it(cache, said, monkeypatch):
    cache.put(KEY, ROLE, FILES)

    def exhausted(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(private_files.os, "open", exhausted)
        assert cache.get(KEY, ROLE) is None
    assert "Too many open files" in said[0] and cache.get(KEY, ROLE).files == FILES


def test_threads_that_write_clear_and_read_never_see_half_an_entry(cache):
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
                cache.put(f"{number % 4:02d}" + "0" * 62, ROLE, FILES)

    def read():
        while not stop.is_set():
            for number in range(4):
                found = cache.get(f"{number:02d}" + "0" * 62, ROLE)
                assert found is None or found.files == FILES
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
        "import sys; from turret.storage.artifact_cache import ArtifactCache\n"
        "cache = ArtifactCache(sys.argv[1])\n"
        "for n in range(30): cache.put(f'{n:064d}', 'role', {'file': str(n).encode() * 1000})\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "cache")]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    cache = ArtifactCache(tmp_path / "cache")
    assert len(cache.entries()) == 30 and leftovers(cache) == []
    assert all(cache.get(entry.name, ROLE) for entry in cache.entries())


def test_what_killed_writers_left_goes_and_what_a_writer_works_in_stays(cache):
    cache.put(KEY, ROLE, FILES)
    building = cache.folder / artifact_cache.FORMAT / ".building"
    long_ago = time.time() - 3600
    left, new = building / "left", building / "new"
    for folder in (left, new):
        folder.mkdir()
        (folder / "half").write_bytes(b"1")
    os.utime(left, (long_ago, long_ago))
    with cache._building() as working:
        os.utime(working, (long_ago, long_ago))
        ArtifactCache(cache.folder).put(OTHER, ROLE, FILES)
        assert working.exists() and new.exists() and not left.exists()


def test_size_and_clear(cache):
    assert (cache.size(), cache.clear()) == (0, 0)
    for number in range(3):
        cache.put(f"{number:02d}" + "0" * 62, ROLE, FILES)
    of_another_format = cache.folder / "cd" / "entry"
    of_another_format.mkdir(parents=True)
    assert len(cache.entries()) == 3
    assert cache.size() > 3000
    assert cache.clear() == 3
    assert (cache.size(), cache.entries()) == (0, []) and not of_another_format.exists()


# The size limit.


def filled(folder, limit, count, size=1000):
    """A cache of so many entries, the first of which was used longest ago."""
    cache = ArtifactCache(folder, limit=limit)
    for number in range(count):
        cache.put(key_of(number), ROLE, {"one": b"1" * size})
        if cache.contains(key_of(number)):
            os.utime(cache.path(key_of(number)), (1e9 + number, 1e9 + number))
    return cache


def key_of(number):
    return f"{number * 7 % 100:02d}{number:062d}"


def test_past_its_limit_the_cache_drops_what_was_longest_unused(tmp_path):
    cache = filled(tmp_path, 0, 10)
    full = cache.size()
    cache.limit = full - 1
    os.utime(cache.path(key_of(0)))  # used just now
    cache.put(key_of(10), ROLE, {"one": b"1"})
    kept = [n for n in range(11) if cache.contains(key_of(n))]
    assert kept[0] == 0 and kept[-1] == 10 and kept[1:] == list(range(11 - len(kept) + 1, 11))
    assert cache.size() <= 0.9 * cache.limit and len(kept) >= 8


def test_a_use_counts(tmp_path):
    cache = filled(tmp_path, 0, 5)
    assert cache.get(key_of(0), ROLE)
    assert time.time() - cache.used(key_of(0)) < 60
    cache.limit = cache.size() - 1
    cache.put(key_of(9), ROLE, {"one": b"1"})
    assert cache.contains(key_of(0)) and not cache.contains(key_of(1))


def test_a_time_that_is_not_now_is_corrected_by_use(tmp_path):
    """The clock was ahead when the entry was used last."""
    cache = filled(tmp_path, 0, 2)
    ahead = time.time() + 1e6
    os.utime(cache.path(key_of(0)), (ahead, ahead))
    assert cache.get(key_of(0), ROLE)
    assert cache.used(key_of(0)) < ahead - 1000


def test_below_the_limit_nobody_walks_through_the_cache(tmp_path, monkeypatch):
    cache = filled(tmp_path, 1 << 20, 2)
    monkeypatch.setattr(cache_limit, "make_room", lambda *_: pytest.fail("walked"))
    for number in range(10, 20):
        cache.put(key_of(number), ROLE, {"one": b"1" * 100})


@pytest.mark.parametrize("count", ["", "many", "-3", "9" * 39, "\x00"])
def test_a_count_that_is_damaged_is_made_anew(tmp_path, count):
    cache = filled(tmp_path, 1 << 20, 3)
    (cache.folder / artifact_cache.FORMAT / ".size").write_text(count)
    cache.put(key_of(5), ROLE, FILES)
    assert int((cache.folder / artifact_cache.FORMAT / ".size").read_text()) == cache.size()
    assert len(cache.entries()) == 4


def test_an_entry_larger_than_the_limit_holds_for_its_maker(tmp_path):
    cache = ArtifactCache(tmp_path, limit=100)
    assert cache.put(KEY, ROLE, FILES).files == FILES
    assert not cache.contains(KEY)


def test_entries_that_are_smaller_than_what_is_noted_of_them_keep_below_the_limit(tmp_path):
    cache = ArtifactCache(tmp_path, limit=10_000)
    for number in range(60):
        cache.put(f"{number:064x}", ROLE, {"file": b"1"})
        assert cache.size() <= cache.limit


def test_writers_at_once_keep_below_the_limit(tmp_path):
    program = (
        "import os, sys; from turret.storage.artifact_cache import ArtifactCache\n"
        "cache = ArtifactCache(sys.argv[1], limit=50_000)\n"
        "for n in range(60):\n"
        "    key = os.urandom(32).hex()\n"
        "    assert cache.put(key, 'role', {'file': b'1' * 2000}).files\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "cache")]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    cache = ArtifactCache(tmp_path / "cache", limit=50_000)
    cache.put(KEY, ROLE, FILES)
    assert cache.size() <= 60_000 and cache.contains(KEY)


# Whose the folder is.


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


def test_folders_on_the_way_are_looked_at(tmp_path, monkeypatch):
    parent = tmp_path / "parent"
    folder = ArtifactCache(parent / "mine").folder
    os.chmod(parent, 0o777)
    with pytest.raises(CacheError, match=f"lies in {parent}, to which others may write"):
        ArtifactCache(folder)
    os.chmod(parent, 0o1777)  # others cannot rename what is not theirs
    ArtifactCache(folder)
    os.chmod(parent, 0o755)
    stat = private_files.Path.stat
    theirs = {parent: (os.getuid() + 1) or 1}

    def of_others(path, **arguments):
        status = stat(path, **arguments)
        if path in theirs:
            return os.stat_result((*status[:4], theirs[path], *status[5:]))
        return status

    monkeypatch.setattr(private_files.Path, "stat", of_others)
    with pytest.raises(CacheError, match=f"lies in {parent}, which belongs to another user"):
        ArtifactCache(folder)


def test_a_link_to_the_folder_is_resolved_once(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir(mode=0o700)
    assert ArtifactCache(tmp_path / "link").folder == (tmp_path / "real").resolve()


def test_a_folder_that_cannot_be_used_gives_way_to_memory_on_record(tmp_path, said):
    (tmp_path / "file").write_text("")
    assert open_store(str(tmp_path / "file"), report=said.append) is process_cache
    assert "cannot be made" in said[0]
    with pytest.warns(UserWarning, match="cannot be made"):
        open_store(str(tmp_path / "file"))


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TURRET_CACHE_DIR", str(tmp_path / "named"))
    assert ArtifactCache().folder == tmp_path / "named"
    monkeypatch.delenv("TURRET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ArtifactCache().folder == tmp_path / "xdg" / "turret"


# In memory.


def test_the_store_in_memory_keeps_what_was_made_last():
    store = ProcessCache()
    store.most = 3000
    for number in range(200):
        store.put(key_of(number), ROLE, {"one": b"1" * 100})
    kept = [n for n in range(200) if store.contains(key_of(n))]
    assert kept == list(range(200 - len(kept), 200)) and 30 <= len(kept) <= 32
    assert store.get(key_of(199), ROLE)["one"] == b"1" * 100 and store.get(key_of(199), "other") is None
    store.remove(key_of(199))
    assert not store.contains(key_of(199))
