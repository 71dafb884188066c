"""Of the kernels of symbolic sizes those that a call asks for are compiled, in whatever process it is made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F

from tests.plugins.codegen.triton.test_stage import ForGpu, compile_for_gpu, table_of
from turret.errors import CodegenError
from turret.hooks.hookspecs import hookimpl
from turret.hooks.plugin_manager import default_manager
from turret.plan import Plan
from turret.plan.launch.table import KernelBinary, LazyKernel
from turret.plugins.codegen.triton.compilation import lazy
from turret.plugins.codegen.triton.compilation.lazy import compile_lazy
from turret.storage.artifact_cache import ArtifactCache

ANOTHER_PROCESS = """
import sys
from turret.storage import codec
from turret.storage.artifact_cache import ArtifactCache
from turret.plan.launch.device import TABLE
from turret.plan.launch.table import LazyKernel
from turret.hooks.plugin_manager import default_manager
from turret.plan.launch import lazy_kernels

default_manager()
cache = ArtifactCache(sys.argv[1])
table = codec.loads(cache.get(sys.argv[2], "library")[TABLE].decode())
for kernel in table.kernels:
    if isinstance(kernel, LazyKernel):
        binary, image = lazy_kernels._compilers[kernel.language](kernel, cache)
        print(binary.function, image[:4] == b"\\x7fELF")
print("sympy" in sys.modules)
"""


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w)


def compiled(
    cache: Path, rows: int, columns: int, function: Callable[..., Any] = norm, dynamic: bool | None = True
) -> ForGpu:
    return compile_for_gpu(function, torch.ones(rows, columns), torch.ones(columns), cache=cache, dynamic=dynamic)


def kernels_of(plan: Plan) -> tuple[list[KernelBinary], list[LazyKernel]]:
    kernels = table_of(plan).kernels
    return [k for k in kernels if isinstance(k, KernelBinary)], [k for k in kernels if isinstance(k, LazyKernel)]


class Watch:
    """Plugin: what a process is told of the cache in calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    @hookimpl
    def turret_event(self, event: Any) -> None:
        if event.stage == "run":
            self.told.append((event.kind, event.message))


@pytest.fixture
def watch() -> Any:
    plugin = Watch()
    default_manager().register(plugin)
    yield plugin
    default_manager().unregister(plugin)


@pytest.mark.parametrize(("sizes", "variants"), [((64, 96), 3), ((63, 97), 2)], ids=["multiples", "odd"])
def test_the_kernel_for_the_sizes_at_hand_is_compiled_and_the_others_are_not(
    tmp_path: Path, sizes: tuple[int, int], variants: int
) -> None:
    plugin = compiled(tmp_path, *sizes)
    there, later = kernels_of(plugin.plan)
    assert len(there) == 1 and len(later) == variants - 1
    assert [e.message for e in plugin.events if e.kind == "cache_miss" and e.stage == "codegen"] == [
        f"1 kernels compiled, {variants - 1} left until sizes ask for them"
    ]
    parts = plugin.plan.source.split("\n\n# (not compiled yet: it is when sizes first ask for it)\n")
    assert len(parts) == variants
    assert f"def {there[0].function}(" in parts[0]
    for kernel, part in zip(later, parts[1:], strict=True):
        is_shown = f"def {kernel.function}(" in part
        assert is_shown != (f"def {kernel.function}(" in parts[0]), "of equal sources one is shown"
        assert is_shown or part == f"# {kernel.function} with fewer multiples of 16 in its arguments"


def test_kernels_of_static_sizes_are_all_compiled(tmp_path: Path) -> None:
    there, later = kernels_of(compiled(tmp_path, 64, 96, dynamic=None).plan)
    assert there and not later


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_graph_of_no_elements_has_no_kernels_to_compile(tmp_path: Path, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :0] * 2, x[:, :0] + w[:0]

    assert kernels_of(compiled(tmp_path, 3, 4, program, dynamic).plan) == ([], [])


def test_a_kernel_that_is_compiled_in_a_call_is_kept_for_later_calls_and_graphs(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, later = kernels_of(compiled(tmp_path, 64, 96).plan)
    cache = ArtifactCache(tmp_path)
    for kernel in later:
        binary, image = compile_lazy(kernel, cache)
        assert binary.function == kernel.function and image[:4] == b"\x7fELF"
        assert binary.programmatic == there[0].programmatic
    monkeypatch.setattr(lazy, "shared_pool", lambda wanted: pytest.fail("nothing is left to compile"))
    assert compile_lazy(later[0], cache)[1][:4] == b"\x7fELF"
    assert [kind for kind, _ in watch.told] == ["cache_miss", "cache_miss", "cache_hit"]
    assert all("which sizes asked for the first time, took" in said for _, said in watch.told)
    again, left = kernels_of(compiled(tmp_path, 64, 96).plan)
    assert not left and {k.function for k in again} == {k.function for k in (*there, *later)}


def test_another_process_compiles_what_a_stored_plan_lacks_and_this_one_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compiled(tmp_path, 64, 96).plan
    _, later = kernels_of(plan)
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path), plan.needed_library.key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == [*(f"{kernel.function} True" for kernel in later), "False"], done.stderr
    monkeypatch.setattr(lazy, "shared_pool", lambda wanted: pytest.fail("nothing is left to compile"))
    assert all(compile_lazy(kernel, ArtifactCache(tmp_path))[1] for kernel in later)


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    _, (kernel, *_) = kernels_of(compiled(tmp_path, 64, 96).plan)
    request = json.loads(kernel.request)
    broken = attrs.evolve(kernel, request=json.dumps({**request, "source": request["source"].replace("tl.", "tll.")}))
    with pytest.raises(CodegenError, match=f"Triton did not compile kernel {kernel.function}"):
        compile_lazy(broken, ArtifactCache(tmp_path))
    assert compile_lazy(kernel, ArtifactCache(tmp_path))


def test_a_kernel_that_takes_more_than_its_launch_has_is_refused(tmp_path: Path) -> None:
    _, (kernel, *_) = kernels_of(compiled(tmp_path, 64, 96).plan)
    short = attrs.evolve(kernel, parameters=kernel.parameters - 1)
    with pytest.raises(CodegenError, match=f"kernel {kernel.function} takes {kernel.parameters} parameters"):
        compile_lazy(short, ArtifactCache(tmp_path))
