"""The launcher over a recording driver."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.plan.launch.driver_lab import FakeDriver
from tests.core.plan.launch.graph_lab import FakeGraph
from turret.plan.launch.driver_library import GRAPHS, LAUNCHER
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.libraries import open_anew


@pytest.fixture(scope="session")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """The launcher, and the path of the recording driver."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("driver")
    driver = folder / "libcuda_fake.so"
    source = Path(__file__).with_name("fake_driver.cpp")
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", str(driver), str(source)], check=True, timeout=120)
    return LAUNCHER.build(ArtifactCache(folder / "cache")), driver


@pytest.fixture
def fake(built_driver: tuple[bytes, Path], tmp_path: Path) -> Iterator[FakeDriver]:
    launcher, driver = built_driver
    # Both hold state: each test opens a launcher and a copy of the driver of its own.
    own = shutil.copy(driver, tmp_path / driver.name)
    yield FakeDriver(LAUNCHER.open(open_anew(launcher), str(own)), ctypes.CDLL(str(own)))


@pytest.fixture(scope="session")
def built_graphs(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The library that reads and patches graphs."""
    return GRAPHS.build(ArtifactCache(tmp_path_factory.mktemp("graphs") / "cache"))


@pytest.fixture
def graph(fake: FakeDriver, built_graphs: bytes) -> FakeGraph:
    """An empty graph of the recording driver."""
    return FakeGraph(fake, GRAPHS.open(open_anew(built_graphs), fake.driver._name))
