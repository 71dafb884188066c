"""Tests on the device "acme", which is torch's PrivateUse1 and so needs a process that has it for good.

    from tests.plugins.devices.acme_world import World, on_acme, rand

    @on_acme
    def test_a_sum_is_eager_s(world: World) -> None:
        world.agree(lambda x: x.sum(0), rand(3, 4))

A decorated test runs in one further process, which this one starts with its first and keeps: its module is imported
there, too, and the function called with a fresh ``World`` and the test's parameters.  ``@given`` goes below
``@on_acme``, ``@pytest.mark.parametrize`` above; fixtures of pytest are not to be had.  For a debugger, and for
scripts: ``python -m tests.plugins.devices.acme_world test_file.py test_name`` runs a test in its own process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.util
import inspect
import os
import pickle
import runpy
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import turret
from tests.plugins.devices import acme_shim
from tests.plugins.devices.acme_plugin import AcmePlugin
from turret.api import cudagraphs
from turret.testing.corpus.seeding import seed_generators

ROOT = Path(__file__).parents[3]
SECONDS = 280
"""What a test may take."""


class World:
    """The device, a fresh plugin, and ways to compile with it; what was compiled before is forgotten.

    Recordings are as on a GPU: the arguments of each node end in a word that nobody wrote, unless ``noise`` is False.
    """

    def __init__(self, native: Any, keeps_arena: bool = False, noise: bool = True) -> None:
        self.native, self.plugin = native, AcmePlugin(native, keeps_arena)
        self.device = self.plugin.device
        native.acme_set_noise(noise)
        self.graphs, self.driver = self.device.graphs, self.device.driver
        seed_generators(0)
        turret.reset()
        cudagraphs.functions.clear()  # those that no garbage collection has taken

    def compile(self, function: Any, *further: Any, **options: Any) -> Any:
        """Compile for the device, with further plugins, under options; errors come out, and no cache is used."""
        given = {"on_error": "raise", "cache": False, **options}
        return turret.compile(function, plugins=[self.plugin, *further], options=given)

    def agree(self, function: Callable, *inputs: Any) -> Any:
        """Compiled and eager give the same, on the device, by kernels of the device."""
        expected = function(*inputs)
        found = self.compile(function)(*inputs)
        assert self.driver.launched and not self.driver.strangers
        assert found.device == expected.device and found.dtype == expected.dtype and found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected.cpu())
        return found


def rand(*shape: int, **options: Any) -> torch.Tensor:
    """Normally distributed numbers on the device; with ``grad=True`` it requires a gradient."""
    return torch.randn(*shape).to("acme").requires_grad_(options.get("grad", False))


def environment(cache: Path | None = None) -> dict[str, str]:
    """That of a process that finds the device's modules; the test is skipped where it could not be built.

    A cache folder of its own is given the device, which is compiled once for all tests.
    """
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    if cache is not None:
        acme_shim.built(cache)
    found = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    folder = {} if cache is None else {"TURRET_CACHE_DIR": str(cache)}
    return {**os.environ, "PYTHONPATH": found, **folder}


_in_device_s_process = False


def on_acme(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs where the device is; its first argument is the ``World``."""
    if _in_device_s_process:
        return test
    signature = inspect.signature(test)
    first, *others = signature.parameters.values()
    if first.name != "world":
        raise TypeError(f"{test.__qualname__} runs on acme: its first argument has to be world, not {first.name}")

    @functools.wraps(test, updated=())  # its attributes would make it hypothesis's
    def remote(**arguments: Any) -> None:
        _process().run(inspect.getfile(test), test.__name__, arguments)

    del remote.__wrapped__
    remote.__signature__ = signature.replace(parameters=others)
    remote.pytestmark = list(getattr(test, "pytestmark", []))
    return remote


class DeviceProcess:
    """A process that has the device, and runs tests one after the other."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the process writes to it as long as it lives)
        command = [sys.executable, "-m", __name__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        self._process = subprocess.Popen(command, env=environment(), **pipes)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, path: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Run a test; what came of it is the caller's outcome."""
        pickle.dump((path, name, arguments), self._process.stdin)
        self._process.stdin.flush()
        answered, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        if not answered:
            self._process.kill()
        try:
            outcome, text = pickle.load(self._process.stdout)
        except EOFError:
            status = self._process.wait()
            self._log.seek(0)
            raise AssertionError(f"acme's process ended with {status}:\n{self._log.read()[-8000:]}") from None
        if outcome == "skipped":
            pytest.skip(text)
        if outcome == "failed":
            raise AssertionError(text)

    def end(self) -> None:
        """Let the process go."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


_processes: list[DeviceProcess] = []


def _process() -> DeviceProcess:
    if not _processes or not _processes[-1].is_alive:
        _processes.append(DeviceProcess())
    return _processes[-1]


def end_process() -> None:
    """Let the process of this one's tests go; the next test starts another."""
    while _processes:
        _processes.pop().end()


@functools.cache
def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"acme_tests_{len(sys.modules)}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _outcome(native: Any, path: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    try:
        getattr(_module(path), name)(World(native), **arguments)
    except pytest.skip.Exception as skipped:
        return "skipped", str(skipped)
    except BaseException:
        return "failed", traceback.format_exc()
    return "passed", ""


def _device() -> Any:
    """Makes this the device's process."""
    from tests.plugins.devices import acme_world  # the module that tests import, where this file is run as a program

    acme_world._in_device_s_process = True
    runpy.run_path(str(ROOT / "tests" / "conftest.py"))  # hypothesis's profile
    return acme_shim.load()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tests print is for the log
    native = _device()
    while True:
        try:
            path, name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        faulthandler.dump_traceback_later(SECONDS - 10)
        answer = _outcome(native, path, name, arguments)
        faulthandler.cancel_dump_traceback_later()
        pickle.dump(answer, answers)
        answers.flush()


def _run_here(path: str, *names: str) -> int:
    native, failed = _device(), 0
    for name in names:
        outcome, text = _outcome(native, str(Path(path).resolve()), name, {})
        failed += outcome == "failed"
        print(f"{name}: {outcome} {text}")
    return failed


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(_run_here(*sys.argv[1:]) if len(sys.argv) > 1 else _serve())
