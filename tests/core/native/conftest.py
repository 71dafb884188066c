"""The launcher over a recording driver."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_lab import FakeDriver

from turret.artifact_cache import ArtifactCache
from turret.native import build


@pytest.fixture(scope="session")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Paths of the launcher and of the recording driver."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("driver")
    driver = folder / "libcuda_fake.so"
    source = Path(__file__).with_name("fake_driver.cpp")
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", str(driver), str(source)], check=True, timeout=120)
    return build.build(ArtifactCache(folder / "cache")), driver


@pytest.fixture
def fake(built_driver: tuple[Path, Path], tmp_path: Path) -> Iterator[FakeDriver]:
    launcher, driver = built_driver
    # A copy of the libraries for each test, since a process opens a path once and both hold state.
    own = [shutil.copy(path, tmp_path / path.name) for path in (launcher, driver)]
    yield FakeDriver(build.open_launcher(Path(own[0]), str(own[1])), ctypes.CDLL(str(own[1])), tmp_path)
