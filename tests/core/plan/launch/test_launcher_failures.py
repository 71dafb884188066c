"""Without its launcher a plan for a GPU does not load: the program runs eagerly, and one warning says why."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import attrs
import pytest
import torch

import turret
from turret.hooks.hookspecs import hookimpl
from turret.plan.launch import device, driver_library
from turret.plan.launch.table import LaunchTable
from turret.plugins.codegen import cpp
from turret.storage import codec, prebuilt
from turret.storage.artifact_cache import process_cache
from turret.storage.libraries import Library, keep_library


class ForCuda:
    """Makes plans for the CPU into plans for a GPU, whose kernels the launcher would run."""

    @hookimpl
    def turret_codegen(self, context, schedule, target):
        plan = cpp.turret_codegen(context, schedule, target)
        table = codec.dumps(LaunchTable((), {}, {})).encode()
        keep_library(process_cache, "0" * 64, {device.TABLE: table})
        return attrs.evolve(plan, device="cuda:0", library=Library("0" * 64, device.TABLE))


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(x) + 1, -1)


def broken_compiler(folder: Path) -> str:
    script = folder / "compiler"
    script.write_text("#!/bin/sh\necho no room left >&2\nexit 1\n")
    script.chmod(0o700)
    return str(script)


@pytest.mark.parametrize(
    ("compiler", "driver", "reason"),
    [
        (broken_compiler, "libcuda.so.1", r"the C\+\+ compiler failed on launcher.cpp.*no room left"),
        (
            lambda folder: str(folder / "none"),
            "libcuda.so.1",
            r"the kernel launcher needs a C\+\+ compiler; .*none",
        ),
        (lambda folder: shutil.which("g++"), "libnone.so.1", "the CUDA driver cannot be opened: .*libnone"),
    ],
    ids=["compiler fails", "no compiler", "no driver"],
)
def test_eager_takes_over_with_the_reason(compiler, driver, reason, tmp_path, monkeypatch):
    compiled = turret.compile(
        program, plugins=[ForCuda()], options={"on_error": "fallback", "cache_dir": str(tmp_path)}
    )
    turret.compile(program, options={"on_error": "raise"})(torch.zeros(2, 3))  # what a CPU needs is there
    monkeypatch.setattr(prebuilt, "folder", lambda: tmp_path / "prebuilt")
    monkeypatch.setattr(driver_library, "_loaded", {})
    monkeypatch.setattr(driver_library, "DRIVER", driver)
    real = cpp.turret_codegen

    def with_compiler(*args, **kwargs):
        with monkeypatch.context() as usual:
            usual.delenv("CXX", raising=False)
            return real(*args, **kwargs)

    monkeypatch.setattr(cpp, "turret_codegen", with_compiler)
    monkeypatch.setenv("CXX", compiler(tmp_path))
    x = torch.randn(4, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(compiled(x), program(x))
    (message,) = [str(w.message).replace("\n", " ") for w in caught]
    assert re.search(rf"stage 'load' .*{reason}", message), message
