"""Whatever happens to a cache folder, every run gives the right result: from it, anew, or without it, on record."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turret
from tests.core.storage.cache_lab import X, damage, entries, run, scaled
from turret.errors import CacheError
from turret.storage import artifact_cache
from turret.storage.artifact_cache import FORMAT, ArtifactCache


@pytest.fixture(autouse=True)
def fresh():
    yield
    turret.reset()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that one run has filled, and that serves the next."""
    run(tmp_path / "cache")
    again = run(tmp_path / "cache")
    assert set(again.stages) == {"runtime"} and not again.failures
    return tmp_path / "cache"


def test_a_second_process_of_a_model_with_dropout_traces_and_compiles_nothing(folder):
    watch = run(folder)
    assert set(watch.stages) == {"runtime"}
    assert {kind for kind, _, _ in watch.cache} == {"hit"}


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_damage_of_any_kind_is_repaired(folder, seed):
    draw = random.Random(seed)
    done = [damage(draw, folder) for _ in range(draw.randrange(1, 4))]
    run(folder)
    again = run(folder)
    assert set(again.stages) == {"runtime"}, done
    assert not again.failures, (done, again.failures)


@pytest.mark.parametrize("role", ["library", "unit", "forward", "backward"])
def test_entries_of_one_kind_in_each_other_s_place_are_noticed(folder, role):
    """Swapped entries verify in themselves."""
    found = [e for e in entries(folder) if json.loads((e / "manifest.json").read_text())["role"] == role]
    if len(found) < 2:
        found.append(next(e for e in entries(folder) if e not in found))
    one, other = found[:2]
    aside = folder / "aside"
    for source, target in ((one, aside), (other, one), (aside, other)):
        os.rename(source, target)
    watch = run(folder)
    assert any("it says that it is" in message for message in watch.failures)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["mkdtemp", "rename", "write_bytes"])
def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path, monkeypatch, call, number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    owner = {"mkdtemp": artifact_cache.tempfile, "rename": artifact_cache.os, "write_bytes": artifact_cache.Path}[call]
    real = getattr(owner, call)
    mine = str(tmp_path / "cache")

    def fail_here(*args, **named):
        return fail() if mine in " ".join(map(str, (*args, *named.values()))) else real(*args, **named)

    monkeypatch.setattr(owner, call, fail_here)
    watch = run(tmp_path / "cache")
    assert os.strerror(number) in " ".join(watch.failures)
    assert entries(tmp_path / "cache") == []


def test_writes_that_fail_now_and_then_cost_time_alone(tmp_path, monkeypatch):
    draw, real = random.Random(0), artifact_cache.ArtifactCache._write

    def write(self, *arguments):
        if draw.random() < 0.5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *arguments)

    monkeypatch.setattr(artifact_cache.ArtifactCache, "_write", write)
    for _ in range(3):
        run(tmp_path / "cache")


def test_a_default_folder_that_may_not_be_used_is_a_warning_and_a_named_one_an_error(tmp_path):
    shared = tmp_path / "turret"
    shared.mkdir()
    os.chmod(shared, 0o777)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TURRET_CACHE_DIR")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.warns(UserWarning, match="keeps no compiled artifacts: others may write"):
            compiled = turret.compile(scaled, options={"on_error": "raise"})
            torch.testing.assert_close(compiled(X), scaled(X))
    with pytest.raises(CacheError, match="others may write"):
        turret.compile(scaled, options={"cache_dir": str(shared)})
    assert list(shared.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs to give files away")
@pytest.mark.parametrize("level", ["file", "entry", "shard"])
def test_what_belongs_to_another_user_is_not_used(folder, level):
    for entry in entries(folder):
        for path in entry.iterdir() if level == "file" else [entry] if level == "entry" else [entry.parent]:
            os.chown(path, 12345, 12345)
    watch = run(folder)
    assert any("belongs to another user" in message for message in watch.failures)
    assert set(run(folder).stages) == {"runtime"}


def test_a_cache_that_is_cleared_all_the_time_costs_time_alone(tmp_path):
    stop = threading.Event()

    def clear():
        while not stop.is_set():
            ArtifactCache(tmp_path / "cache").clear()
            stop.wait(0.001)

    clearing = threading.Thread(target=clear)
    clearing.start()
    try:
        for _ in range(3):
            run(tmp_path / "cache")
    finally:
        stop.set()
        clearing.join()


def test_a_limit_that_is_too_small_costs_time_alone(tmp_path):
    for limit in (1, 10_000, 60_000):
        for _ in range(2):
            watch = run(tmp_path / "cache", cache_size_limit=limit)
            assert not watch.failures
        assert ArtifactCache(tmp_path / "cache").size() <= limit


@pytest.mark.parametrize("years", [-30, -1, 1, 10])
def test_times_that_are_off_by_years_change_nothing(folder, years, monkeypatch):
    moment = time.time() + years * 3e7
    for path in (*entries(folder), *(folder / FORMAT).glob("??")):
        os.utime(path, (moment, moment))
    assert set(run(folder).stages) == {"runtime"}
    monkeypatch.setattr(time, "time", lambda: moment)
    assert set(run(folder).stages) == {"runtime"}


def test_a_cache_of_another_version_is_left_alone(folder):
    """The format before this one lay in the folder itself."""
    for entry in entries(folder):
        older = folder / entry.parent.name / entry.name
        older.mkdir(parents=True)
        (older / "manifest.json").write_text("{}")
    before = sorted(folder.glob("??/*"))
    assert set(run(folder).stages) == {"runtime"}
    assert sorted(folder.glob("??/*")) == before


def test_entries_of_a_later_format_are_made_anew(folder):
    for entry in entries(folder):
        manifest = json.loads((entry / "manifest.json").read_text())
        (entry / "manifest.json").write_text(json.dumps({**manifest, "format": "v3", "more": 1}))
    assert "lower" in run(folder).stages
    assert set(run(folder).stages) == {"runtime"}


def test_failures_are_counted_and_logged(folder, capfd):
    for entry in entries(folder):
        (entry / "manifest.json").write_text("damaged")
    before = turret.cache_counts()
    turret.set_logs("cache")
    try:
        watch = run(folder)
    finally:
        turret.set_logs(cache=False)
    after = turret.cache_counts()
    counted = sum(after[k] - before.get(k, 0) for k in after if k.endswith(" failure"))
    assert counted == len(watch.failures) > 0
    written = capfd.readouterr().err
    assert written.count(" cache] ") == len(watch.cache) and "failure: the cache entry" in written
